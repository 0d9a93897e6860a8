//! [`Script`]: the interpretation of a fuzzer's input as a sequence of steps.

use std::time::Duration;

use crate::wire::{MESSAGE_HEADER_LEN, write_message_header};

/// Unread bytes of a fuzzer's input, which describe the steps of a run. After the last byte, reads
/// return zeros.
pub(super) struct Script<'a>(&'a [u8]);

/// Step of a fuzz run: an action of the peer, the clock or the program under test.
pub(super) enum Step {
    /// The peer sends a message with these bytes.
    Message(Vec<u8>),
    /// The clock advances.
    Pause(Duration),
    /// The peer receives all messages that have arrived.
    Receive,
    /// All ready tasks run.
    RunTasks,
    /// The program makes a call of this kind.
    Call(u8),
    /// The program makes a further call or aborts a call, depending on the target.
    Act(u8),
}

/// Maximum number of steps (actions of a test) that are executed for one input of the fuzzer. With
/// the limit, an input of a few kilobytes does not take seconds.
const MAX_STEPS: usize = 300;

impl<'a> Script<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Decodes this input of the fuzzer, and returns its steps: the actions of a test, such as
    /// sending a message. Returns at most [`MAX_STEPS`] steps.
    pub(super) fn steps(mut self) -> impl Iterator<Item = Step> {
        let steps = std::iter::from_fn(move || {
            if self.0.is_empty() {
                return None;
            }
            Some(match self.byte() {
                RAW => {
                    let len = u16::from_be_bytes([self.byte(), self.byte()]);
                    Step::Message(self.some(len.into()).to_vec())
                }
                1..=4 => Step::Message(self.message()),
                5 => Step::Pause(Duration::from_millis(self.byte().into())),
                6 => Step::Pause(Duration::from_secs(self.byte().into())),
                7 => Step::Receive,
                8 => Step::RunTasks,
                9 => Step::Act(self.byte()),
                _ => Step::Call(self.byte()),
            })
        });
        steps.take(MAX_STEPS)
    }

    /// Reads the bytes of the fuzzer's input that describe the next message. The message has valid
    /// frame headers, but arbitrary values in their fields. Returns the encoded message.
    fn message(&mut self) -> Vec<u8> {
        let count = 1 + u16::from(self.byte() % 4);
        let mut message = vec![0; MESSAGE_HEADER_LEN];
        write_message_header(&mut message, count);
        for _ in 0..count {
            // The kind, the codec, and the argument of 16 bits.
            let head = [self.byte(), self.byte(), 0, self.byte()];
            let len = self.byte();
            let id = [self.byte(), self.byte()].map(u32::from);
            message.extend(head);
            message.extend(u32::from(len).to_be_bytes());
            for part in id {
                // The highest values represent the highest values of 32 bits.
                let part = if part >= 0xfe {
                    0xffff_ff00 | part
                } else {
                    part
                };
                message.extend(part.to_be_bytes());
            }
            let rest = self.some(len.into());
            message.extend(rest);
            message.resize(message.len() + usize::from(len) - rest.len(), 0);
        }
        message
    }

    /// Reads a byte. Returns 0 after the end of the input.
    fn byte(&mut self) -> u8 {
        self.some(1).first().copied().unwrap_or_default()
    }

    /// Reads and removes the next `len` bytes of the input, or fewer at the end of the input.
    fn some(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Code of the step in which the peer sends a message with arbitrary bytes. In a fuzzer's input,
/// each step begins with a byte that is the code of its kind.
const RAW: u8 = 0;

/// Appends a step to `script`, an encoded input of the fuzz targets. In the step, the fuzzed peer
/// sends `message` to the program under test.
pub(super) fn write_message(script: &mut Vec<u8>, message: &[u8]) {
    let len = u16::try_from(message.len()).expect("a recorded message is short");
    script.push(RAW);
    script.extend(len.to_be_bytes());
    script.extend(message);
}

/// Appends a step to `script`, an encoded input of the fuzz targets. The step runs all tasks that
/// are ready to run.
pub(super) fn write_run_tasks(script: &mut Vec<u8>) {
    script.push(8);
}

/// Appends a step to `script`, an encoded input of the fuzz targets. In the step, the program makes
/// a call. `number` is the kind of the call.
pub(super) fn write_call(script: &mut Vec<u8>, number: u8) {
    script.extend([10, number]);
}
