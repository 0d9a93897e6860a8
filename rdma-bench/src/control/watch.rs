//! Noticing, while polling, that the other end is gone or silent.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Looks at the clock and the control connection, once in many empty polls.
#[derive(Debug)]
pub struct Watch {
    stream: TcpStream,
    limit: Duration,
    ends_with_peer: bool,
    /// Empty polls since something came.
    polls: u32,
    /// When the clock was first looked at since something came.
    idle_since: Option<Instant>,
    /// When the connection was looked at last.
    looked: Instant,
}

impl Watch {
    /// Empty polls between two looks at the clock.
    const POLLS: u32 = 1 << 10;
    /// The time between two looks at the connection.
    const PAUSE: Duration = Duration::from_millis(20);
    /// How long nothing may come once the other end has said that it is done: its last message may
    /// still be on its way.
    const GRACE: Duration = Duration::from_secs(2);

    pub(super) fn new(stream: &TcpStream, limit: Duration, ends_with_peer: bool) -> Result<Self> {
        let what = "watching the control connection";
        let stream = stream.try_clone().map_err(Error::control(what))?;
        // The mode belongs to the connection, not to this handle of it.
        stream.set_nonblocking(true).map_err(Error::control(what))?;
        Ok(Self {
            stream,
            limit,
            ends_with_peer,
            polls: 0,
            idle_since: None,
            looked: Instant::now(),
        })
    }

    /// Something came.
    #[inline]
    pub fn busy(&mut self) {
        self.polls = 0;
        self.idle_since = None;
    }

    /// A poll found nothing. Returns whether the other end is done and this one is to end with it.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`], or [`Error::TimedOut`] when nothing came for too long.
    #[inline]
    pub fn idle(&mut self) -> Result<bool> {
        self.polls += 1;
        if self.polls.is_multiple_of(Self::POLLS) {
            self.look()
        } else {
            Ok(false)
        }
    }

    /// A wait of some length ended without anything. As [`Self::idle`].
    ///
    /// # Errors
    ///
    /// As [`Self::idle`].
    #[cold]
    pub fn look(&mut self) -> Result<bool> {
        let now = Instant::now();
        let idle = now - *self.idle_since.get_or_insert(now);
        if now - self.looked >= Self::PAUSE {
            self.looked = now;
            if self.has_spoken()? {
                if self.ends_with_peer {
                    return Ok(true);
                }
                if idle > Self::GRACE {
                    return Err(Error::TimedOut {
                        what: "message or completion after the peer was done",
                        limit: Self::GRACE,
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
        // If this fails the next read of the connection says so.
        let _ = self.stream.set_nonblocking(false);
    }
}
