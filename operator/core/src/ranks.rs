//! Which rank of a group does what, and where it runs.
//!
//! Ranks are numbered data-major, then by pipeline stage, then by tensor part:
//! `r = (dp * pipeline + pp) * tensor + tp`. Rank `r` runs in pod `r / devices_per_pod` on that pod's device
//! `r % devices_per_pod`. So a tensor group, which talks most, is as close together as it can be: inside one pod when it
//! fits, in neighbouring pods otherwise. Each data-parallel rank is led by its first rank, which holds its scheduler.

use kvasir_operator_api::TopologySpec;

/// Most ranks of one group.
pub const MAX_RANKS: i64 = 1024;

/// The shape of a group, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    tensor: u32,
    pipeline: u32,
    data: u32,
    devices_per_pod: u32,
}

/// What one rank does and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Number within the group.
    pub rank: u32,
    /// Copy of the model.
    pub data: u32,
    /// Stage of the copy's layers.
    pub pipeline: u32,
    /// Part of the stage's layers.
    pub tensor: u32,
    /// Ordinal of its pod.
    pub pod: u32,
    /// Device within the pod.
    pub device: u32,
}

/// Why a shape can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A number isn't positive.
    #[error("{field} is {value}; it must be at least 1")]
    NotPositive {
        /// The number's field.
        field: &'static str,
        /// Its value.
        value: i32,
    },
    /// More ranks than a group can have.
    #[error("tensor * pipeline * data is {ranks}; a group has at most {MAX_RANKS} ranks")]
    TooManyRanks {
        /// How many there would be.
        ranks: i64,
    },
    /// A pod would hold parts of two tensor groups.
    #[error("tensor ({tensor}) must be a multiple of devicesPerPod ({devices}) or divide it")]
    SplitTensorGroup {
        /// Ranks of a tensor group.
        tensor: u32,
        /// Ranks of a pod.
        devices: u32,
    },
    /// The last pod would have idle devices.
    #[error(
        "the group's {ranks} ranks don't fill pods of {devices} devices: make tensor * pipeline * data a multiple of it"
    )]
    IdleDevices {
        /// Ranks of the group.
        ranks: u32,
        /// Ranks of a pod.
        devices: u32,
    },
}

impl Shape {
    /// One rank in one pod.
    pub(crate) const SINGLE: Self = Self {
        tensor: 1,
        pipeline: 1,
        data: 1,
        devices_per_pod: 1,
    };

    /// Checks a topology. What the API server's rules admit passes.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn new(spec: &TopologySpec) -> Result<Self, ShapeError> {
        let tensor = positive("tensor", spec.tensor)?;
        let pipeline = positive("pipeline", spec.pipeline)?;
        let data = positive("data", spec.data)?;
        let devices = positive("devicesPerPod", spec.devices_per_pod)?;
        // Each is below 2^31, so that two products could exceed 64 bits only beyond any bound that is checked here.
        let ranks = i64::from(tensor)
            .saturating_mul(i64::from(pipeline))
            .saturating_mul(i64::from(data));
        if ranks > MAX_RANKS {
            return Err(ShapeError::TooManyRanks { ranks });
        }
        if !tensor.is_multiple_of(devices) && !devices.is_multiple_of(tensor) {
            return Err(ShapeError::SplitTensorGroup { tensor, devices });
        }
        let shape = Self {
            tensor,
            pipeline,
            data,
            devices_per_pod: devices,
        };
        if !shape.ranks().is_multiple_of(devices) {
            return Err(ShapeError::IdleDevices {
                ranks: shape.ranks(),
                devices,
            });
        }
        Ok(shape)
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.tensor * self.pipeline * self.data
    }

    /// Pods of the group.
    pub fn pods(&self) -> u32 {
        self.ranks() / self.devices_per_pod
    }

    /// Ranks of each pod.
    pub fn devices_per_pod(&self) -> u32 {
        self.devices_per_pod
    }

    /// All ranks in order.
    pub fn table(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.ranks()).map(|rank| self.rank(rank))
    }

    /// What rank `rank` does and where.
    pub fn rank(&self, rank: u32) -> Rank {
        Rank {
            rank,
            data: rank / (self.tensor * self.pipeline),
            pipeline: rank / self.tensor % self.pipeline,
            tensor: rank % self.tensor,
            pod: rank / self.devices_per_pod,
            device: rank % self.devices_per_pod,
        }
    }

    /// First rank of the pod with this ordinal.
    pub fn first_rank_of_pod(&self, ordinal: u32) -> u32 {
        ordinal * self.devices_per_pod
    }
}

fn positive(field: &'static str, value: i32) -> Result<u32, ShapeError> {
    match u32::try_from(value) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(ShapeError::NotPositive { field, value }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn topology(tensor: i32, pipeline: i32, data: i32, devices_per_pod: i32) -> TopologySpec {
        TopologySpec {
            tensor,
            pipeline,
            data,
            devices_per_pod,
            ..TopologySpec::default()
        }
    }

    /// The rules of the resource definition, in its own words.
    fn admitted(t: i32, p: i32, d: i32, per_pod: i32) -> bool {
        (t % per_pod == 0 || per_pod % t == 0) && (t * p * d) % per_pod == 0 && t * p * d <= 1024
    }

    #[test]
    fn every_combination_that_the_api_server_admits_has_a_whole_rank_map_and_no_other() {
        let mut seen = 0;
        for t in 1..=64 {
            for p in 1..=64 {
                for d in 1..=256 {
                    if t * p * d > 1024 {
                        assert!(Shape::new(&topology(t, p, d, 1)).is_err());
                        break;
                    }
                    for per_pod in 1..=16 {
                        let shape = Shape::new(&topology(t, p, d, per_pod));
                        assert_eq!(shape.is_ok(), admitted(t, p, d, per_pod), "{t} {p} {d} {per_pod}");
                        if let Ok(shape) = shape {
                            seen += 1;
                            check(&shape);
                        }
                    }
                }
            }
        }
        assert!(seen > 10_000, "only {seen} combinations were seen");
    }

    /// Every place is filled once, and the formulas of the design hold in both directions.
    fn check(shape: &Shape) {
        let (t, p) = (shape.tensor, shape.pipeline);
        let mut last = None;
        for r in shape.table() {
            assert_eq!((r.data * p + r.pipeline) * t + r.tensor, r.rank);
            assert_eq!(r.pod * shape.devices_per_pod + r.device, r.rank);
            assert!(r.data < shape.data && r.pipeline < p && r.tensor < t && r.pod < shape.pods());
            assert!(
                last < Some((r.pod, r.device)),
                "places are filled in order, each once"
            );
            last = Some((r.pod, r.device));
        }
        assert_eq!(last, Some((shape.pods() - 1, shape.devices_per_pod - 1)));
    }

    #[test]
    fn a_tensor_group_fills_whole_pods_or_shares_one() {
        for (t, per_pod) in [(8, 4), (4, 8), (2, 2), (16, 1), (1, 16)] {
            let shape = Shape::new(&topology(t, 2, 8, per_pod)).unwrap();
            let groups: BTreeSet<_> = shape.table().map(|r| (r.data, r.pipeline)).collect();
            for (data, pipeline) in groups {
                let pods: BTreeSet<_> = shape
                    .table()
                    .filter(|r| (r.data, r.pipeline) == (data, pipeline))
                    .map(|r| r.pod)
                    .collect();
                assert_eq!(pods.len() as i32, (t / per_pod).max(1));
            }
        }
    }

    #[test]
    fn two_stages_of_two_tensor_parts_in_two_copies_lie_as_documented() {
        let shape = Shape::new(&topology(2, 2, 2, 2)).unwrap();
        let table: Vec<_> = shape
            .table()
            .map(|r| (r.data, r.pipeline, r.tensor, r.pod, r.device))
            .collect();
        assert_eq!(
            table,
            [
                (0, 0, 0, 0, 0),
                (0, 0, 1, 0, 1),
                (0, 1, 0, 1, 0),
                (0, 1, 1, 1, 1),
                (1, 0, 0, 2, 0),
                (1, 0, 1, 2, 1),
                (1, 1, 0, 3, 0),
                (1, 1, 1, 3, 1),
            ]
        );
        assert_eq!(shape.first_rank_of_pod(3), 6);
    }

    #[test]
    fn numbers_that_are_no_shape_are_named() {
        assert_eq!(
            Shape::new(&topology(0, 1, 1, 1)).unwrap_err().to_string(),
            "tensor is 0; it must be at least 1"
        );
        assert!(Shape::new(&topology(i32::MAX, i32::MAX, i32::MAX, 1)).is_err());
    }
}
