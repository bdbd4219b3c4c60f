//! Stop strings in streamed text, wherever the pieces happen to be divided.

const STOP_STRINGS_MAX: usize = 64;
const STOP_STRING_BYTES_MAX: usize = 1024;

/// Watches one output for stop strings. Text that might be the beginning of one is held back until that is decided.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    is_stopped: bool,
}

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopOutcome {
    /// No stop string so far.
    Continue { emit: String },
    /// The stop string with this index ended the output; neither it nor anything after it is emitted.
    Stopped { emit: String, stop: usize },
}

/// Why a list of stop strings was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopStringError {
    #[error("stop[{index}] is empty; a stop string needs at least one character")]
    Empty { index: usize },
    #[error("stop[{index}] has {got} bytes; at most {max} are accepted")]
    TooLong { index: usize, got: usize, max: usize },
    #[error("{got} stop strings were given; at most {max} are accepted")]
    TooMany { got: usize, max: usize },
}

impl StopMatcher {
    pub fn new(stops: Vec<String>) -> Result<Self, StopStringError> {
        Self::check(&stops)?;
        Ok(Self { stops, held: String::new(), is_stopped: false })
    }

    /// Whether these can be watched for.
    pub fn check(stops: &[String]) -> Result<(), StopStringError> {
        if stops.len() > STOP_STRINGS_MAX {
            return Err(StopStringError::TooMany { got: stops.len(), max: STOP_STRINGS_MAX });
        }
        for (index, stop) in stops.iter().enumerate() {
            if stop.is_empty() {
                return Err(StopStringError::Empty { index });
            }
            if stop.len() > STOP_STRING_BYTES_MAX {
                return Err(StopStringError::TooLong { index, got: stop.len(), max: STOP_STRING_BYTES_MAX });
            }
        }
        Ok(())
    }

    /// Adds text and returns what may be shown. The stop string that is complete first wins; of those complete at
    /// the same place, the longest. After a stop, everything is swallowed.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.is_stopped {
            return StopOutcome::Continue { emit: String::new() };
        }
        self.held.push_str(text);
        if let Some((start, stop)) = self.first_match() {
            self.is_stopped = true;
            let mut emit = std::mem::take(&mut self.held);
            emit.truncate(start);
            return StopOutcome::Stopped { emit, stop };
        }
        let undecided = self.stops.iter().map(|stop| longest_beginning(stop, &self.held)).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - undecided);
        StopOutcome::Continue { emit: std::mem::replace(&mut self.held, tail) }
    }

    /// Ends the output: what was held back turned out to be ordinary text.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Start and index of the match that ends first.
    fn first_match(&self) -> Option<(usize, usize)> {
        let matches = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        matches.min().map(|(_, start, index)| (start, index))
    }
}

/// Length of the longest proper beginning of `stop` that `text` ends with.
fn longest_beginning(stop: &str, text: &str) -> usize {
    let lengths = stop.char_indices().map(|(at, _)| at).rev();
    lengths.filter(|&len| len <= text.len()).find(|&len| text.ends_with(&stop[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.into()).collect()).unwrap();
        let (mut text, mut stopped) = (String::new(), None);
        for piece in pieces {
            match matcher.push(piece) {
                StopOutcome::Continue { emit } => text += &emit,
                StopOutcome::Stopped { emit, stop } => {
                    text += &emit;
                    stopped = Some(stop);
                }
            }
        }
        text += &matcher.flush();
        (text, stopped)
    }

    #[test]
    fn a_stop_string_across_pieces_is_never_shown() {
        assert_eq!(run(&["</s>"], &["hi<", "/", "s", "> more", "even more"]), ("hi".into(), Some(0)));
        assert_eq!(run(&["</s>"], &["hi<", "/b>"]), ("hi</b>".into(), None));
        assert_eq!(run(&["</s>"], &["hi</s"]), ("hi</s".into(), None));
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        assert_eq!(run(&["abc", "b"], &["abc"]), ("a".into(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["abc"]), ("".into(), Some(1)));
    }

    #[test]
    fn text_is_emitted_as_soon_as_it_is_safe() {
        let mut matcher = StopMatcher::new(vec!["\n\nUser:".into()]).unwrap();
        assert_eq!(matcher.push("a\n"), StopOutcome::Continue { emit: "a".into() });
        assert_eq!(matcher.push("b"), StopOutcome::Continue { emit: "\nb".into() });
        assert_eq!(StopMatcher::new(vec![]).unwrap().push("x"), StopOutcome::Continue { emit: "x".into() });
    }

    #[test]
    fn bad_stop_strings_are_named() {
        assert_eq!(StopMatcher::new(vec!["a".into(), "".into()]).unwrap_err(), StopStringError::Empty { index: 1 });
        let long = StopMatcher::new(vec!["a".repeat(1025)]).unwrap_err();
        assert_eq!(long, StopStringError::TooLong { index: 0, got: 1025, max: 1024 });
        let many = StopMatcher::new(vec!["a".into(); 65]).unwrap_err();
        assert_eq!(many, StopStringError::TooMany { got: 65, max: 64 });
    }

    /// The definition, on the whole text: the match that ends first.
    fn naive(stops: &[String], text: &str) -> (String, bool) {
        let ends = text.char_indices().map(|(at, char)| at + char.len_utf8());
        for end in ends {
            let longest = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(String::len).max();
            if let Some(len) = longest {
                return (text[..end - len].into(), true);
            }
        }
        (text.into(), false)
    }

    proptest! {
        #[test]
        fn streaming_agrees_with_a_search_of_the_whole_text(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let stop_slices: Vec<&str> = stops.iter().map(String::as_str).collect();
            let piece_slices: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (text, stopped) = run(&stop_slices, &piece_slices);
            prop_assert_eq!((text, stopped.is_some()), naive(&stops, &pieces.concat()));
        }
    }
}
