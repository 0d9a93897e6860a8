//! Detects, while this process polls, that the peer has exited or does not respond.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// A check that the peer is alive, for a process that polls. Reads the clock and the control
/// connection only after many empty polls (polls without a completion or message).
#[derive(Debug)]
pub struct Watch {
    stream: TcpStream,
    limit: Duration,
    ends_with_peer: bool,
    /// Number of empty polls (polls without a completion or message) since the last message or
    /// completion.
    polls: u32,
    /// Time of the first check of the clock since the last message or completion.
    idle_since: Option<Instant>,
    /// Time of the last check of the control connection.
    checked: Instant,
}

impl Watch {
    /// Number of empty polls between two readings of the clock. The number is large enough that the
    /// readings do not slow down the polls.
    const POLLS_PER_CLOCK_READ: u32 = 1 << 10;
    /// Minimum time between two checks of the control connection, because each check is a system
    /// call.
    const CHECK_INTERVAL: Duration = Duration::from_millis(20);
    /// Maximum time that this process waits for a further message or completion after the peer has
    /// reported that it finished. The peer's last message may still be in flight during this time.
    const MAX_IDLE_AFTER_FINISH: Duration = Duration::from_secs(2);

    pub(super) fn new(stream: &TcpStream, limit: Duration, ends_with_peer: bool) -> Result<Self> {
        let what = "watching the control connection";
        let stream = stream.try_clone().map_err(Error::control(what))?;
        // Non-blocking mode applies to the connection, not only to this duplicate of its
        // descriptor.
        stream.set_nonblocking(true).map_err(Error::control(what))?;
        Ok(Self {
            stream,
            limit,
            ends_with_peer,
            polls: 0,
            idle_since: None,
            checked: Instant::now(),
        })
    }

    /// Records that a message or a completion has arrived. The time limit for the next message or
    /// completion begins again.
    #[inline]
    pub fn busy(&mut self) {
        self.polls = 0;
        self.idle_since = None;
    }

    /// Records a poll that found neither a message nor a completion. After many such polls, also
    /// checks the peer. Returns `true` if this process must stop because the peer has finished, or
    /// `false` to continue polling.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`] if the peer has exited. [`Error::TimedOut`] if no message or completion
    /// arrived for too long.
    #[inline]
    pub fn idle(&mut self) -> Result<bool> {
        self.polls += 1;
        if self.polls.is_multiple_of(Self::POLLS_PER_CLOCK_READ) {
            self.check()
        } else {
            Ok(false)
        }
    }

    /// Checks the peer and the time limit, after a wait without a message or completion. Returns
    /// `true` if this process must stop because the peer has finished, or `false` to continue.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::idle`].
    #[cold]
    pub fn check(&mut self) -> Result<bool> {
        let now = Instant::now();
        let idle = now - *self.idle_since.get_or_insert(now);
        if now - self.checked >= Self::CHECK_INTERVAL {
            self.checked = now;
            if self.has_spoken()? {
                if self.ends_with_peer {
                    return Ok(true);
                }
                if idle > Self::MAX_IDLE_AFTER_FINISH {
                    return Err(Error::TimedOut {
                        what: "message or completion after the peer was done",
                        limit: Self::MAX_IDLE_AFTER_FINISH,
                    });
                }
            }
        }
        if idle > self.limit {
            return Err(Error::TimedOut {
                what: "message or completion",
                limit: self.limit,
            });
        }
        Ok(false)
    }

    fn has_spoken(&self) -> Result<bool> {
        match self.stream.peek(&mut [0]) {
            Ok(0) => Err(Error::PeerGone),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(super::lost(error)),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // If this fails, the next read of the connection reports the error.
        let _ = self.stream.set_nonblocking(false);
    }
}
