//! Depth first through the graph of states. Its path is the counterexample if a law is broken.

use std::collections::BTreeMap;

use crate::world::{Action, Scope, World};

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) num_states: usize,
    pub(crate) num_transitions: usize,
}

/// Whether a state is on the path, or all that follows from it is known to end.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Mark {
    OnPath,
    Ends,
}

struct Frame {
    world: World,
    fingerprint: u128,
    /// Not tried yet; the last one is tried next.
    actions: Vec<Action>,
    can_go_on: bool,
}

/// Visits every state of a scope.
///
/// # Panics
/// If a law is broken; the path of actions is printed.
pub(crate) fn explore(scope: &Scope) -> Report {
    let mut report = Report::default();
    let mut marks: BTreeMap<u128, Mark> = BTreeMap::new();
    let mut path = Path(scope.name, Vec::new());
    let mut frames = vec![enter(World::new(scope), scope, &mut marks)];
    while let Some(frame) = frames.last_mut() {
        let Some(action) = frame.actions.pop() else {
            assert!(
                frame.can_go_on || frame.world.is_over(),
                "nothing can happen and sequences are left"
            );
            marks.insert(frame.fingerprint, Mark::Ends);
            frames.pop();
            path.1.pop();
            continue;
        };
        path.1.push(action);
        let mut next = frame.world.clone();
        let changed = next.act(action, scope);
        let fingerprint = next.fingerprint();
        if !changed || fingerprint == frame.fingerprint {
            path.1.pop();
            continue;
        }
        frame.can_go_on |= !matches!(action, Action::Abort(_) | Action::Submit(_));
        report.num_transitions += 1;
        if let Some(&mark) = marks.get(&fingerprint) {
            assert!(mark == Mark::Ends, "the actions lead back to a state");
            path.1.pop();
        } else {
            frames.push(enter(next, scope, &mut marks));
        }
    }
    report.num_states = marks.len();
    report
}

fn enter(world: World, scope: &Scope, marks: &mut BTreeMap<u128, Mark>) -> Frame {
    let fingerprint = world.fingerprint();
    marks.insert(fingerprint, Mark::OnPath);
    Frame {
        actions: world.actions(scope),
        world,
        fingerprint,
        can_go_on: false,
    }
}

/// Prints itself when a law is broken.
struct Path(&'static str, Vec<Action>);

impl Drop for Path {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(
                clippy::print_stderr,
                reason = "a counterexample is what a failed search gives"
            )]
            {
                eprintln!("scope {}, after {:?}", self.0, self.1);
            }
        }
    }
}
