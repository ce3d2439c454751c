//! Hands tensors to the backend, one after the other.

use kvasir_backend::{Backend, DType, WeightView};
use kvasir_weights::Checkpoint;

use crate::check::{Tensor, view};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::load::LoadProgress;

/// Loads tensors and counts their bytes.
pub(crate) struct Loader<'a, 'p, B: Backend> {
    backend: &'a mut B,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    progress: &'a mut Option<&'p mut dyn FnMut(LoadProgress)>,
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a, 'p, B: Backend> Loader<'a, 'p, B> {
    pub(crate) fn new(
        backend: &'a mut B,
        checkpoint: &'a Checkpoint,
        config: &'a ModelConfig,
        progress: &'a mut Option<&'p mut dyn FnMut(LoadProgress)>,
    ) -> Self {
        Self {
            backend,
            checkpoint,
            config,
            progress,
            done_bytes: 0,
            total_bytes: checkpoint.total_bytes(),
        }
    }

    /// Matrices stacked along their outputs.
    pub(crate) fn matrix(&mut self, tensors: &[Tensor]) -> Result<B::Matrix, ModelError> {
        let mut names = vec![String::new(); tensors.len()];
        let parts = self.views(tensors, &mut names)?;
        let matrix = self.backend.load_matrix(&parts).map_err(ModelError::Backend)?;
        self.report(&parts);
        Ok(matrix)
    }

    pub(crate) fn bias(
        &mut self,
        present: bool,
        tensors: &[Tensor],
    ) -> Result<Option<B::Vector>, ModelError> {
        if present {
            self.vector(tensors).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Vectors one after the other.
    pub(crate) fn vector(&mut self, tensors: &[Tensor]) -> Result<B::Vector, ModelError> {
        let mut names = vec![String::new(); tensors.len()];
        let parts = self.views(tensors, &mut names)?;
        let joined = JoinedVector::new(&parts)?;
        let vector = self
            .backend
            .load_vector(joined.view())
            .map_err(ModelError::Backend)?;
        self.report(&parts);
        Ok(vector)
    }

    /// Gives back the file's pages that were read so far: the device has its own copy, and for the length of loading a
    /// model would otherwise be in memory twice.
    pub(crate) fn release_file(&self) {
        self.checkpoint.advise_done();
    }

    fn views<'v>(
        &self,
        tensors: &[Tensor],
        names: &'v mut [String],
    ) -> Result<Vec<WeightView<'v>>, ModelError>
    where
        Self: 'v,
    {
        let (config, checkpoint) = (self.config, self.checkpoint);
        tensors
            .iter()
            .zip(names)
            .map(|(tensor, name)| view(config, checkpoint, *tensor, name))
            .collect()
    }

    fn report(&mut self, parts: &[WeightView<'_>]) {
        self.done_bytes += parts.iter().map(|part| part.data.len() as u64).sum::<u64>();
        if let Some(progress) = self.progress {
            progress(LoadProgress {
                done_bytes: self.done_bytes,
                total_bytes: self.total_bytes,
            });
        }
    }
}

/// Biases of stacked matrices, joined: the backend loads a vector from one piece.
struct JoinedVector<'a> {
    name: &'a str,
    dtype: DType,
    cols: usize,
    data: Vec<u8>,
}

impl<'a> JoinedVector<'a> {
    fn new(parts: &[WeightView<'a>]) -> Result<Self, ModelError> {
        let Some(first) = parts.first() else {
            return Err(ModelError::Contradiction {
                reason: "a vector of no parts".to_owned(),
            });
        };
        if let Some(other) = parts.iter().find(|part| part.dtype != first.dtype) {
            return Err(ModelError::Contradiction {
                reason: format!(
                    "{} is {} but {} is {}; biases of one layer must have one type",
                    first.name, first.dtype, other.name, other.dtype
                ),
            });
        }
        let data = parts.iter().flat_map(|part| part.data).copied().collect();
        let cols = parts.iter().map(|part| part.cols).sum();
        Ok(Self {
            name: first.name,
            dtype: first.dtype,
            cols,
            data,
        })
    }

    fn view(&self) -> WeightView<'_> {
        WeightView {
            name: self.name,
            dtype: self.dtype,
            rows: 1,
            cols: self.cols,
            data: &self.data,
        }
    }
}
