//! Game of ping-pong: each end that has received a message sends the next one.

use std::fmt;
use std::time::{Duration, Instant};

use rdma_core::address::Destination;
use rdma_core::{
    Buffer, ProtectionDomain, QueuePair, ReceiveQueue, SendQueue, SendRequest, SharedReceiveQueue,
    WorkCompletion,
};

use super::completions::{Completions, Ticks};
use super::{Options, Outcome};

/// Memory of a message, or `None` if messages are empty.
pub(crate) type Ball = Option<Buffer>;

/// Length in bytes of a page; the C programs check the first byte of each page of a message.
const PAGE: usize = 4096;

/// Value of all bytes of a message except for the first byte of each page, which is zero.
const FILL: u8 = 0x7b;

/// Maximum length in bytes of the memory for receives, which is one registration cut in pieces.
const MOST_MEMORY: usize = 64 << 20;

/// Allocates memory for the requested number of receives, or for as many as fit.
pub(crate) fn balls(
    domain: &ProtectionDomain,
    options: &Options,
    header: usize,
) -> Outcome<Vec<Ball>> {
    let len = options.size + header;
    let count = options.receives;
    if len == 0 {
        return Ok((0..count).map(|_| None).collect());
    }
    let count = count.min(MOST_MEMORY / len).max(options.queue_pairs + 1);
    let mut rest = domain.allocate(count * len)?;
    let mut balls = Vec::with_capacity(count);
    for _ in 1..count {
        let (ball, others) = rest.split_at(len);
        balls.push(Some(ball));
        rest = others;
    }
    balls.push(Some(rest));
    Ok(balls)
}

/// Receive queue for the messages of the peer.
pub(crate) trait Receives {
    fn post(&mut self, ball: Ball) -> Outcome<()>;

    fn complete(&mut self, completion: &WorkCompletion) -> Option<Ball>;
}

impl Receives for ReceiveQueue<Ball> {
    fn post(&mut self, ball: Ball) -> Outcome<()> {
        Ok(self.post(ball).map_err(rdma_core::Error::from)?)
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Option<Ball> {
        self.complete(completion)
    }
}

impl Receives for SharedReceiveQueue<Ball> {
    fn post(&mut self, ball: Ball) -> Outcome<()> {
        Ok((*self).post(ball).map_err(rdma_core::Error::from)?)
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Option<Ball> {
        (*self).complete(completion)
    }
}

/// Queue pair of the game.
#[derive(Debug)]
pub(crate) struct Player {
    number: u32,
    sends: SendQueue<Ball>,
    /// Destination of datagrams; a connected queue pair needs none.
    to: Option<Destination>,
    /// Memory of the next message; `None` while it is sent.
    ball: Option<Ball>,
    /// Set while a message of the peer must arrive before the next send.
    awaits: bool,
    inline: bool,
}

impl Player {
    pub(crate) fn new(
        domain: &ProtectionDomain,
        queue_pair: &QueuePair,
        to: Option<Destination>,
        options: &Options,
    ) -> Outcome<Self> {
        let ball = match options.size {
            0 => None,
            size => {
                let mut ball = domain.allocate(size)?;
                ball.fill(FILL);
                ball.iter_mut().step_by(PAGE).for_each(|first| *first = 0);
                Some(ball)
            }
        };
        Ok(Self {
            number: queue_pair.number(),
            sends: queue_pair.send_queue(),
            to,
            ball: Some(ball),
            awaits: true,
            inline: options.size <= queue_pair.inline_limit(),
        })
    }

    /// Sends the ball if it is here and no message is awaited. Returns whether it was sent.
    fn send(&mut self) -> Outcome<bool> {
        if self.awaits {
            return Ok(false);
        }
        let Some(ball) = self.ball.take() else {
            return Ok(false);
        };
        let mut request = SendRequest::send(ball);
        if let Some(to) = &self.to {
            request = request.to(to);
        }
        if self.inline {
            request = request.inline();
        }
        self.sends.post(request).map_err(rdma_core::Error::from)?;
        self.awaits = true;
        Ok(true)
    }
}

/// Results of a game.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Number of messages with wrong bytes, if messages were checked.
    pub(crate) invalid: u64,
    /// Times between receives, if they were requested.
    pub(crate) ticks: Ticks,
    bytes: u64,
    elapsed: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (iterations, seconds) = (self.sent as f64, self.elapsed.as_secs_f64());
        let bits = self.bytes as f64 * 8.0;
        writeln!(
            f,
            "{} bytes in {seconds:.2} seconds = {:.2} Mbit/sec",
            self.bytes,
            bits / seconds / 1e6
        )?;
        write!(
            f,
            "{} iters in {seconds:.2} seconds = {:.2} usec/iter",
            self.sent,
            seconds * 1e6 / iterations
        )?;
        if self.ticks.intervals > 0 {
            let average = self.ticks.sum as f64 / self.ticks.intervals as f64;
            writeln!(
                f,
                "\nMax receive completion clock cycles = {}",
                self.ticks.most
            )?;
            writeln!(
                f,
                "Min receive completion clock cycles = {}",
                self.ticks.least
            )?;
            write!(f, "Average receive completion clock cycles = {average:.6}")?;
        }
        if self.invalid > 0 {
            write!(f, "\ninvalid data in {} messages", self.invalid)?;
        }
        Ok(())
    }
}

/// Plays until as many messages were sent and received as the options request. A message begins
/// after `header` bytes of a receive. If `serves`, this end sends first.
pub(crate) fn play(
    options: &Options,
    completions: &Completions,
    players: &mut [Player],
    receives: &mut impl Receives,
    header: usize,
    serves: bool,
) -> Outcome<Report> {
    let mut report = Report {
        sent: 0,
        received: 0,
        invalid: 0,
        ticks: Ticks::default(),
        bytes: options.size as u64 * options.iterations * 2,
        elapsed: Duration::ZERO,
    };
    let mut started = 0;
    let begin = Instant::now();
    if serves {
        for player in players.iter_mut() {
            player.awaits = false;
            started += u64::from(player.send()?);
        }
    }
    let mut room = Vec::new();
    while report.sent < options.iterations || report.received < options.iterations {
        completions.next(&mut room)?;
        for (completion, time) in &room {
            completion.result()?;
            let player = players
                .iter_mut()
                .find(|player| player.number == completion.queue_pair())
                .ok_or("a completion of another queue pair")?;
            if let Some(ball) = player.sends.complete(completion).next() {
                player.ball = Some(ball);
                report.sent += 1;
            } else {
                let ball = receives
                    .complete(completion)
                    .ok_or("a completion of nobody")?;
                if options.check && !is_valid(&ball, completion, header, options.size) {
                    report.invalid += 1;
                }
                if let Some(time) = *time {
                    report.ticks.count(time);
                }
                receives.post(ball)?;
                player.awaits = false;
                report.received += 1;
            }
            if started < options.iterations {
                started += u64::from(player.send()?);
            }
        }
    }
    report.elapsed = begin.elapsed();
    Ok(report)
}

/// Returns whether a message has the right length, and a zero at the start of each of its pages.
fn is_valid(ball: &Ball, completion: &WorkCompletion, header: usize, size: usize) -> bool {
    let message = ball.as_ref().map_or(&[][..], |ball| &ball[header..]);
    completion.len() == header + size && message.iter().step_by(PAGE).all(|&first| first == 0)
}
