//! [`Script`]: the steps that the bytes of an input stand for.

use std::time::Duration;

use crate::wire::{MESSAGE_HEADER, write_message_header};

/// Bytes of an input that were not read yet. After the last byte, reads return zeros.
pub(super) struct Script<'a>(&'a [u8]);

/// Message of a peer, or the passing of time.
pub(super) enum Step {
    /// Message of any bytes.
    Message(Vec<u8>),
    Pause(Duration),
    /// The peer receives every message that has arrived.
    Receive,
    /// All tasks that are ready run.
    Settle,
    /// The program makes the call of this number, or does something with a call of this number.
    Call(u8),
    Act(u8),
}

/// Maximum number of steps: an input of a few kilobytes must not take seconds.
const STEPS: usize = 300;

impl<'a> Script<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the steps.
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
                8 => Step::Settle,
                9 => Step::Act(self.byte()),
                _ => Step::Call(self.byte()),
            })
        });
        steps.take(STEPS)
    }

    /// Returns a message whose headers are well formed and whose fields hold anything.
    fn message(&mut self) -> Vec<u8> {
        let count = 1 + u16::from(self.byte() % 4);
        let mut message = vec![0; MESSAGE_HEADER];
        write_message_header(&mut message, count);
        for _ in 0..count {
            // Kind, codec, argument of 16 bits.
            let head = [self.byte(), self.byte(), 0, self.byte()];
            let len = self.byte();
            let id = [self.byte(), self.byte()].map(u32::from);
            message.extend(head);
            message.extend(u32::from(len).to_be_bytes());
            for part in id {
                // The highest values stand for those of 32 bits.
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

    fn byte(&mut self) -> u8 {
        self.some(1).first().copied().unwrap_or_default()
    }

    fn some(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Number of the step that sends a message of any bytes.
const RAW: u8 = 0;

/// Writes the step that sends this message.
pub(super) fn write_message(script: &mut Vec<u8>, message: &[u8]) {
    let len = u16::try_from(message.len()).expect("a recorded message is short");
    script.push(RAW);
    script.extend(len.to_be_bytes());
    script.extend(message);
}

/// Writes the step that lets all tasks run.
pub(super) fn write_settle(script: &mut Vec<u8>) {
    script.push(8);
}

/// Writes the step that makes a call.
pub(super) fn write_call(script: &mut Vec<u8>, number: u8) {
    script.extend([10, number]);
}
