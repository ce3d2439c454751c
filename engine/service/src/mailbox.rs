//! Commands on their way to the scheduler thread.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use kvasir_engine_core::SeqId;

use crate::names::RequestKey;
use crate::sink::Submission;

/// Everything that the scheduler thread can be asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Start a request.
    Submit(Box<Submission>),
    /// End one sequence of a request, or all of them. Unknown ones are ignored.
    Abort(RequestKey, Option<u32>),
    /// End a sequence whose request was answered already.
    Forget(SeqId),
    /// Wake up and look at what is wished elsewhere.
    Look,
    /// Fail what runs and end the thread.
    Stop,
}

/// Why a command wasn't taken.
#[derive(Debug)]
pub(crate) enum PostError {
    /// The limit of untaken requests is reached.
    Full(Box<Submission>),
    /// The thread has ended, or is about to.
    Closed,
}

/// A queue that nobody waits to write to. Requests are limited; aborts are kept once each, only live sequences are aborted, and each is
/// forgotten at most once.
#[derive(Debug)]
pub(crate) struct Mailbox {
    max_submissions: usize,
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    submissions: VecDeque<Box<Submission>>,
    aborts: BTreeSet<(RequestKey, Option<u32>)>,
    forgotten: Vec<SeqId>,
    look: bool,
    stop: bool,
    closed: bool,
}

impl Mailbox {
    pub(crate) fn new(max_submissions: usize) -> Self {
        Self {
            max_submissions,
            inbox: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Adds a command.
    pub(crate) fn post(&self, command: Command) -> Result<(), PostError> {
        let mut inbox = self.lock();
        if inbox.closed {
            return Err(PostError::Closed);
        }
        match command {
            Command::Submit(submission) if inbox.submissions.len() >= self.max_submissions => {
                return Err(PostError::Full(submission));
            }
            Command::Submit(submission) => inbox.submissions.push_back(submission),
            Command::Abort(key, index) => {
                inbox.aborts.insert((key, index));
            }
            Command::Forget(seq) => inbox.forgotten.push(seq),
            Command::Look => inbox.look = true,
            Command::Stop => inbox.stop = true,
        }
        drop(inbox);
        self.changed.notify_one();
        Ok(())
    }

    /// Moves all commands to `commands`: requests in the order they came, then aborts, so that an abort always finds its request.
    /// If there are none, waits for one, or doesn't.
    pub(crate) fn take(&self, commands: &mut VecDeque<Command>, wait: bool) {
        let mut inbox = self.lock();
        while wait && inbox.is_empty() {
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        inbox.drain_to(commands);
    }

    /// Takes the requests out, for somebody who answers them in the thread's place.
    pub(crate) fn take_submissions(&self) -> VecDeque<Box<Submission>> {
        std::mem::take(&mut self.lock().submissions)
    }

    /// Takes no commands any more, and gives those that were left.
    pub(crate) fn close(&self, commands: &mut VecDeque<Command>) {
        let mut inbox = self.lock();
        inbox.closed = true;
        inbox.drain_to(commands);
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Every change under the lock is complete before anything that could panic.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        let has_none = self.submissions.is_empty() && self.aborts.is_empty() && self.forgotten.is_empty();
        has_none && !self.look && !self.stop
    }

    fn drain_to(&mut self, commands: &mut VecDeque<Command>) {
        commands.extend(self.submissions.drain(..).map(Command::Submit));
        commands.extend(
            std::mem::take(&mut self.aborts)
                .into_iter()
                .map(|(key, index)| Command::Abort(key, index)),
        );
        commands.extend(self.forgotten.drain(..).map(Command::Forget));
        if std::mem::take(&mut self.look) {
            commands.push_back(Command::Look);
        }
        if std::mem::take(&mut self.stop) {
            commands.push_back(Command::Stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(mailbox: &Mailbox) -> Vec<String> {
        let mut commands = VecDeque::new();
        mailbox.take(&mut commands, false);
        commands.iter().map(|command| format!("{command:?}")).collect()
    }

    #[test]
    fn aborts_are_kept_once_each() {
        let mailbox = Mailbox::new(1);
        for _ in 0..3 {
            mailbox.post(Command::Abort(RequestKey(7), None)).unwrap();
            mailbox.post(Command::Abort(RequestKey(7), Some(1))).unwrap();
        }
        assert_eq!(
            taken(&mailbox),
            ["Abort(RequestKey(7), None)", "Abort(RequestKey(7), Some(1))"]
        );
        assert!(taken(&mailbox).is_empty());
    }

    #[test]
    fn stop_comes_last() {
        let mailbox = Mailbox::new(1);
        mailbox.post(Command::Stop).unwrap();
        mailbox.post(Command::Abort(RequestKey(1), None)).unwrap();
        assert_eq!(taken(&mailbox), ["Abort(RequestKey(1), None)", "Stop"]);
    }

    #[test]
    fn a_closed_mailbox_takes_nothing() {
        let mailbox = Mailbox::new(1);
        let mut left = VecDeque::new();
        mailbox.post(Command::Stop).unwrap();
        mailbox.close(&mut left);
        assert_eq!(left.len(), 1);
        assert!(matches!(mailbox.post(Command::Stop), Err(PostError::Closed)));
    }
}
