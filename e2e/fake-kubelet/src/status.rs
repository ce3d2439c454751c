//! A pod's status as a kubelet writes it, and the way back after this program restarted.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::play::{Ended, Play, State};

/// The status of a pod whose main container is `main`; the others do nothing but run with it.
pub(crate) fn status(pod: &Pod, play: &Play, main: &str, address: Ipv4Addr, host: Ipv4Addr) -> PodStatus {
    let spec = pod.spec.clone().unwrap_or_default();
    let started = !matches!(play.state, State::Creating { .. });
    let statuses = spec.containers.iter().map(|container| {
        if container.name == main {
            main_status(container, play)
        } else {
            side_status(container, play)
        }
    });
    let before: Vec<_> = spec
        .init_containers
        .iter()
        .flatten()
        .map(|c| init_status(c, play, started))
        .collect();
    PodStatus {
        phase: Some(phase(play).to_owned()),
        conditions: Some(conditions(pod, play, started)),
        host_ip: Some(host.to_string()),
        host_ips: Some(vec![HostIP { ip: host.to_string() }]),
        pod_ip: started.then(|| address.to_string()),
        pod_ips: started.then(|| {
            vec![PodIP {
                ip: address.to_string(),
            }]
        }),
        start_time: Some(Time(play.arrived)),
        container_statuses: Some(statuses.collect()),
        init_container_statuses: (!before.is_empty()).then_some(before),
        qos_class: pod.status.as_ref().and_then(|status| status.qos_class.clone()),
        ..PodStatus::default()
    }
}

fn phase(play: &Play) -> &'static str {
    match (&play.state, &play.last) {
        (State::Creating { .. }, _) => "Pending",
        (State::Over, Some(last)) if last.code != 0 => "Failed",
        (State::Over, _) => "Succeeded",
        _ => "Running",
    }
}

fn conditions(pod: &Pod, play: &Play, started: bool) -> Vec<PodCondition> {
    let condition = |kind: &str, is_true: bool, reason: Option<&str>, since: Timestamp| PodCondition {
        type_: kind.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: reason.filter(|_| !is_true).map(str::to_owned),
        last_transition_time: Some(Time(since)),
        ..PodCondition::default()
    };
    let unready = if matches!(play.state, State::Over) {
        "PodCompleted"
    } else {
        "ContainersNotReady"
    };
    // The scheduler's own conditions stay.
    let scheduler = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut all: Vec<_> = scheduler
        .filter(|c| matches!(c.type_.as_str(), "PodScheduled" | "DisruptionTarget"))
        .cloned()
        .collect();
    all.extend([
        condition("PodReadyToStartContainers", started, None, play.arrived),
        condition(
            "Initialized",
            started,
            Some("ContainersNotInitialized"),
            play.arrived,
        ),
        condition("ContainersReady", play.ready, Some(unready), play.ready_changed),
        condition("Ready", play.ready, Some(unready), play.ready_changed),
    ]);
    all
}

fn main_status(container: &Container, play: &Play) -> ContainerStatus {
    let mut status = blank(container);
    status.ready = play.ready;
    status.restart_count = play.restarts;
    let last = play.last.as_ref().map(terminated);
    match &play.state {
        State::Creating { obstacle } => {
            let (reason, message) = match obstacle {
                Some(obstacle) => (obstacle.reason.clone(), Some(obstacle.message.clone())),
                None => ("ContainerCreating".to_owned(), None),
            };
            status.state = Some(waiting(&reason, message));
        }
        State::Running { since } => {
            status.state = Some(running(*since));
            status.started = Some(true);
            status.last_state = last;
        }
        State::Backoff { .. } => {
            let message = format!("back-off restarting failed container {}", container.name);
            status.state = Some(waiting("CrashLoopBackOff", Some(message)));
            status.last_state = last;
        }
        State::Over => status.state = last,
    }
    status
}

fn side_status(container: &Container, play: &Play) -> ContainerStatus {
    let mut status = blank(container);
    match &play.state {
        State::Creating { .. } => status.state = Some(waiting("ContainerCreating", None)),
        State::Over => status.state = play.last.as_ref().map(terminated),
        State::Running { .. } | State::Backoff { .. } => {
            status.state = Some(running(play.arrived));
            status.started = Some(true);
            status.ready = true;
        }
    }
    status
}

/// Done, or running on as a sidecar.
fn init_status(container: &Container, play: &Play, started: bool) -> ContainerStatus {
    let mut status = blank(container);
    let sidecar = container.restart_policy.as_deref() == Some("Always");
    status.ready = started;
    status.started = Some(started && sidecar);
    status.state = Some(match (started, sidecar) {
        (false, _) => waiting("PodInitializing", None),
        (true, true) => running(play.arrived),
        (true, false) => terminated(&Ended {
            code: 0,
            reason: "Completed".to_owned(),
            message: None,
            started: play.arrived,
            at: play.arrived,
        }),
    });
    status
}

fn blank(container: &Container) -> ContainerStatus {
    let image = container.image.clone().unwrap_or_default();
    ContainerStatus {
        name: container.name.clone(),
        image_id: image.clone(),
        image,
        ..ContainerStatus::default()
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn running(since: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(Time(since)),
        }),
        ..ContainerState::default()
    }
}

fn terminated(ended: &Ended) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: ended.code,
            reason: Some(ended.reason.clone()),
            message: ended.message.clone(),
            started_at: Some(Time(ended.started)),
            finished_at: Some(Time(ended.at)),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// Where a pod was that another process of ours had played.
pub(crate) fn resume(pod: &Pod, main: &str, now: Timestamp) -> Play {
    let mut play = Play::new(now);
    let Some(status) = &pod.status else { return play };
    if let Some(start) = &status.start_time {
        play.arrived = start.0;
    }
    let Some(container) = status
        .container_statuses
        .iter()
        .flatten()
        .find(|c| c.name == main)
    else {
        return play;
    };
    play.restarts = container.restart_count;
    play.ready = container.ready;
    let end = |state: &Option<ContainerState>| state.as_ref().and_then(|s| s.terminated.clone());
    let ended = end(&container.state).or(end(&container.last_state));
    play.last = ended.map(|ended| Ended {
        code: ended.exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: ended.message,
        started: ended.started_at.map_or(now, |time| time.0),
        at: ended.finished_at.map_or(now, |time| time.0),
    });
    let state = container.state.clone().unwrap_or_default();
    let began = state
        .running
        .and_then(|running| running.started_at)
        .map(|time| time.0);
    let crashed = state.waiting.and_then(|w| w.reason).as_deref() == Some("CrashLoopBackOff");
    play.state = match (began, state.terminated.is_some(), crashed) {
        (Some(since), ..) => State::Running { since },
        (None, true, _) => State::Over,
        (None, false, true) => State::Backoff { until: now },
        (None, false, false) => State::Creating { obstacle: None },
    };
    play
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::play::Restart;
    use crate::rules::Rule;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {"initContainers": [{"name": "i", "image": "x"}], "containers": [{"name": "engine", "image": "x"}, {"name": "side", "image": "y"}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]},
        }))
        .unwrap()
    }

    fn written(play: &Play) -> PodStatus {
        status(
            &pod(),
            play,
            "engine",
            [198, 18, 0, 9].into(),
            [192, 0, 2, 1].into(),
        )
    }

    #[test]
    fn a_ready_pod_has_an_address_ready_containers_and_each_condition_once() {
        let mut play = Play::new(Timestamp::UNIX_EPOCH);
        play.advance(&Rule::default(), Restart::Always, None, Timestamp::UNIX_EPOCH);
        let status = written(&play);
        assert_eq!(status.pod_ip.as_deref(), Some("198.18.0.9"));
        assert!(status.container_statuses.unwrap().iter().all(|c| c.ready));
        let conditions = status.conditions.unwrap();
        assert_eq!(conditions.iter().filter(|c| c.type_ == "Ready").count(), 1);
        assert_eq!(conditions.iter().filter(|c| c.type_ == "PodScheduled").count(), 1);
        assert!(conditions.iter().all(|c| c.status == "True"));
    }

    #[test]
    fn a_restarted_player_goes_on_where_the_status_says() {
        let rule: Rule =
            serde_yaml::from_str("{exit: {code: 7, message: m, times: 1}, backoffSeconds: 5}").unwrap();
        let mut play = Play::new(Timestamp::UNIX_EPOCH);
        for second in [0, 5] {
            let now = Timestamp::from_second(second).unwrap();
            play.advance(&rule, Restart::Always, None, now);
            let mut pod = pod();
            pod.status = Some(written(&play));
            let resumed = resume(&pod, "engine", now);
            assert_eq!(
                (resumed.restarts, resumed.ready, &resumed.last),
                (play.restarts, play.ready, &play.last)
            );
            assert_eq!(matches!(resumed.state, State::Backoff { .. }), second == 0);
        }
    }
}
