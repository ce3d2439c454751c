//! Finds stop strings in text that arrives in pieces of any size.
//!
//! The stop that *completes* first wins; of two that complete with the same byte, the one earlier in the list (the rule
//! of vLLM). Held back is only the longest end of the text that may still become a stop, never a fixed number of
//! characters, so text that can't be part of a stop streams at once.
//!
//! One Knuth-Morris-Pratt automaton per stop string: its state is the length of the longest prefix of the stop that
//! the text ends with, so the text to hold back is the largest state. The property that holds it, tested over every
//! way of cutting: the emitted pieces together don't depend on where the text was cut.

/// Watches a text for stop strings.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    automata: Vec<Automaton>,
    include_in_output: bool,
    /// Text that may still become part of a stop; shorter than the longest stop.
    held: String,
    matched: Option<usize>,
}

/// What a piece of text led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is certainly not part of a stop string (or is, where stops are included in the output).
    pub emit: String,
    /// The index of the stop string that completed; text after it is dropped, and so is all later text.
    pub matched: Option<usize>,
}

#[derive(Debug, Clone)]
struct Automaton {
    stop: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix of the stop that is also a suffix of its first `n + 1` bytes.
    fallback: Vec<usize>,
    state: usize,
}

impl StopMatcher {
    /// Watches for `stops`. An empty stop string never matches (the edge refuses it earlier).
    #[must_use]
    pub fn new(stops: &[String], include_in_output: bool) -> Self {
        Self {
            automata: stops.iter().map(|stop| Automaton::new(stop.as_bytes())).collect(),
            include_in_output,
            held: String::new(),
            matched: None,
        }
    }

    /// Takes the next piece of text. After a match every further piece emits nothing and repeats the match.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.matched.is_some() {
            return StopStep {
                emit: String::new(),
                matched: self.matched,
            };
        }
        if let Some((index, end)) = self.first_completion(text.as_bytes()) {
            return self.cut(text, index, end);
        }
        let mut emit = std::mem::take(&mut self.held);
        emit.push_str(text);
        if !self.include_in_output {
            // A stop starts with the first byte of a character, so this is a character border.
            self.held = emit.split_off(emit.len() - self.longest_candidate());
        }
        StopStep { emit, matched: None }
    }

    /// The text still held back, once no more text will come. Empty after a match.
    pub fn finish(&mut self) -> String {
        for automaton in &mut self.automata {
            automaton.state = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Which stop string completed, if one did.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// Index of the stop that completes first, and the number of bytes of `text` up to its end.
    fn first_completion(&mut self, text: &[u8]) -> Option<(usize, usize)> {
        if self.automata.is_empty() {
            return None;
        }
        for (position, byte) in text.iter().enumerate() {
            let mut completed = None;
            for (index, automaton) in self.automata.iter_mut().enumerate() {
                if automaton.advance(*byte) && completed.is_none() {
                    completed = Some(index);
                }
            }
            if let Some(index) = completed {
                return Some((index, position + 1));
            }
        }
        None
    }

    fn cut(&mut self, text: &str, index: usize, end: usize) -> StopStep {
        self.matched = Some(index);
        let mut emit = std::mem::take(&mut self.held);
        emit.push_str(&text[..end]);
        if !self.include_in_output {
            emit.truncate(emit.len() - self.automata[index].stop.len());
        }
        StopStep {
            emit,
            matched: self.matched,
        }
    }

    fn longest_candidate(&self) -> usize {
        self.automata
            .iter()
            .map(|automaton| automaton.state)
            .max()
            .unwrap_or(0)
    }
}

impl Automaton {
    fn new(stop: &[u8]) -> Self {
        let mut fallback = vec![0; stop.len()];
        let mut length = 0;
        for at in 1..stop.len() {
            while length > 0 && stop[at] != stop[length] {
                length = fallback[length - 1];
            }
            length += usize::from(stop[at] == stop[length]);
            fallback[at] = length;
        }
        Self {
            stop: stop.to_vec(),
            fallback,
            state: 0,
        }
    }

    /// Takes one byte; true if the stop is now complete.
    fn advance(&mut self, byte: u8) -> bool {
        if self.stop.is_empty() {
            return false;
        }
        while self.state > 0 && self.stop.get(self.state) != Some(&byte) {
            self.state = self.fallback[self.state - 1];
        }
        self.state += usize::from(self.stop[self.state] == byte);
        self.state == self.stop.len()
    }
}

#[cfg(test)]
#[path = "stop_tests.rs"]
mod tests;
