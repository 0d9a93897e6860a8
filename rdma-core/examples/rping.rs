//! `rping`: pings of text that the server reads and writes back by RDMA, over a connection of the
//! connection manager.
//!
//! The program works with C's `rping` in either role:
//!
//! ```sh
//! cargo run -p rdma-core --example rping -- -s -a 10.77.0.1 -v -C 10
//! rping -c -a 10.77.0.1 -v -V -C 10
//! ```
//!
//! For each ping the client sends the address of its text, which the server reads, and then the
//! address for the echo, which the server writes. After each step the server sends a message, so
//! that the client continues. Messages are 16 bytes in network byte order: address, key, length.

use std::collections::VecDeque;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rdma_core::cm::{
    Connection, ConnectionParameters, Connector, Incoming, Listener, PreparedConnection,
};
use rdma_core::memory::Part;
use rdma_core::{
    AccessFlags, Buffer, CompletionChannel, Context, ProtectionDomain, QueuePairBuilder,
    ReceiveQueue, RemoteMemory, SendQueue, SendRequest, WorkCompletion, WorkStatus,
};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "\
rping -s [-vVd] [-S size] [-C count] [-a addr] [-p port]
rping -c [-vVd] [-S size] [-C count] [-I addr] -a addr [-p port]
	-c		client side
	-I		source address to bind to for client
	-s		server side
	-v		display ping data to stdout
	-V		validate ping data
	-d		debug prints
	-S size 	ping data size
	-C count	ping count times, 0 for ever
	-a addr		address
	-p port		port
	-P		persistent server mode allowing multiple connections
	-q		accepted: the queue pair is always of our own making";

/// Maximum time that the other side may take for one step.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Length in bytes of a message between both sides.
const INFO: usize = 16;

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args().skip(1)).and_then(|options| run(&options));
    match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Options of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) server: bool,
    pub(crate) persistent: bool,
    pub(crate) address: IpAddr,
    pub(crate) source: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) size: usize,
    pub(crate) count: u32,
    pub(crate) verbose: bool,
    pub(crate) validate: bool,
    pub(crate) debug: bool,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut options = Self {
            server: false,
            persistent: false,
            address: IpAddr::from([0, 0, 0, 0]),
            source: None,
            port: 7174,
            size: 64,
            count: 0,
            verbose: false,
            validate: false,
            debug: false,
        };
        let mut role = None;
        let mut arguments = arguments.peekable();
        while let Some(word) = arguments.next() {
            let flags = word.strip_prefix('-').ok_or(USAGE)?;
            // As with `getopt`, flags can be combined, and a value may follow without a space.
            for (at, flag) in flags.char_indices() {
                let rest = &flags[at + 1..];
                let mut value = || match rest {
                    "" => arguments.next().ok_or(USAGE),
                    rest => Ok(rest.to_owned()),
                };
                match flag {
                    's' => role = Some(true),
                    'c' => role = Some(false),
                    'v' => options.verbose = true,
                    'V' => options.validate = true,
                    'd' => options.debug = true,
                    'P' => options.persistent = true,
                    'q' => {}
                    'a' => options.address = value()?.parse()?,
                    'I' => options.source = Some(value()?.parse()?),
                    'p' => options.port = value()?.parse()?,
                    'S' => options.size = value()?.parse()?,
                    'C' => options.count = value()?.parse()?,
                    _ => return Err(USAGE.into()),
                }
                if "aIpSC".contains(flag) {
                    break;
                }
            }
        }
        options.server = role.ok_or(USAGE)?;
        // The text of a ping begins with its number.
        if !(28..65536).contains(&options.size) {
            return Err(format!("invalid size {}: 28 to 65535", options.size).into());
        }
        Ok(options)
    }
}

/// Plays the role. Returns the number of pings.
pub(crate) fn run(options: &Options) -> Result<u32, Failure> {
    let address = SocketAddr::new(options.address, options.port);
    if !options.server {
        return client(address, options);
    }
    let listener = Listener::builder(address).timeout(MAX_WAIT).listen()?;
    serve(&listener, options)
}

/// Answers the next client, or every client if the options request that.
pub(crate) fn serve(listener: &Listener, options: &Options) -> Result<u32, Failure> {
    loop {
        let Some(incoming) = listener.next(None)? else {
            continue;
        };
        if !options.persistent {
            return server(incoming, options);
        }
        let options = options.clone();
        thread::spawn(move || {
            if let Err(error) = server(incoming, &options) {
                eprintln!("rping: {error}");
            }
        });
    }
}

/// Answers one client. Returns the number of pings.
pub(crate) fn server(incoming: Incoming, options: &Options) -> Result<u32, Failure> {
    let setup = Setup::new(&incoming.context()?)?;
    let prepared = incoming.prepare(setup.builder()?)?;
    let mut side = Side::establish(setup, prepared, options)?;
    let mut text = side.setup.domain.allocate(options.size)?;
    let mut pings = 0;
    // The loop ends when the client disconnects.
    while let Some(source) = side.told()? {
        let len = usize::try_from(source.len)?;
        text = side.carry_out(SendRequest::read(Part::new(text, 0..len)?, source))?;
        let end = text[..len].iter().position(|&byte| byte == 0);
        let end = end.ok_or("the text of the ping has no end")?;
        if options.verbose {
            println!(
                "server ping data: {}",
                String::from_utf8_lossy(&text[..end])
            );
        }
        side.tell([0; INFO])?;
        let sink = side
            .told()?
            .ok_or("the client left in the middle of a ping")?;
        // The echo includes the zero at the end.
        let echo = Part::new(text, 0..end + 1)?;
        text = side.carry_out(SendRequest::write(echo, sink.slice(..end + 1)?))?;
        side.tell([0; INFO])?;
        pings += 1;
    }
    Ok(pings)
}

fn client(address: SocketAddr, options: &Options) -> Result<u32, Failure> {
    let mut connector = Connector::new(address).timeout(MAX_WAIT);
    if let Some(source) = options.source {
        connector = connector.source(SocketAddr::new(source, 0));
    }
    let peer = connector.resolve()?;
    let setup = Setup::new(&peer.context()?)?;
    let prepared = peer.prepare(setup.builder()?)?;
    let mut side = Side::establish(setup, prepared, options)?;
    let expose = |access| {
        let buffer = side.setup.domain.allocate(options.size)?;
        Ok::<_, Failure>(buffer.expose(access)?)
    };
    let source = expose(AccessFlags::REMOTE_READ)?;
    let sink = expose(AccessFlags::REMOTE_WRITE)?;
    let mut echo = vec![0; options.size];
    let mut pings = 0;
    while options.count == 0 || pings < options.count {
        let text = text(pings, options.size);
        source.write_at(0, &text)?;
        side.tell(info(source.remote()))?;
        side.told()?.ok_or("the server left before it read")?;
        side.tell(info(sink.remote()))?;
        side.told()?.ok_or("the server left before it wrote")?;
        sink.read_at(0, &mut echo)?;
        if options.validate && echo != text {
            return Err(format!("data mismatch in ping {pings}").into());
        }
        if options.verbose {
            let end = echo
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(echo.len());
            println!("ping data: {}", String::from_utf8_lossy(&echo[..end]));
        }
        pings += 1;
    }
    side.connection.disconnect()?;
    Ok(pings)
}

/// Returns the text of a ping: its number, letters that begin with another one each time, and a
/// zero.
fn text(ping: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip(ping as usize % 58);
    let missing = size - text.len().min(size);
    text.extend(letters.take(missing));
    text.truncate(size - 1);
    text.push(0);
    text
}

fn info(memory: RemoteMemory) -> [u8; INFO] {
    let mut bytes = [0; INFO];
    bytes[..8].copy_from_slice(&memory.address.to_be_bytes());
    bytes[8..12].copy_from_slice(&memory.rkey.to_be_bytes());
    bytes[12..].copy_from_slice(&(memory.len as u32).to_be_bytes());
    bytes
}

fn memory(bytes: &[u8; INFO]) -> RemoteMemory {
    let number = |at| u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    RemoteMemory {
        address: u64::from(number(0)) << 32 | u64::from(number(4)),
        rkey: number(8),
        len: number(12).into(),
    }
}

/// The objects that a queue pair needs.
struct Setup {
    domain: ProtectionDomain,
    channel: CompletionChannel,
}

impl Setup {
    fn new(context: &Context) -> Result<Self, Failure> {
        Ok(Self {
            domain: context.protection_domain()?,
            channel: context.completion_channel()?,
        })
    }

    fn builder(&self) -> Result<QueuePairBuilder, Failure> {
        let queue = self.domain.context().completion_queue(32);
        let queue = queue.channel(&self.channel).build()?;
        let builder = self.domain.queue_pair().send_completions(&queue);
        Ok(builder.send_requests(16).receive_requests(2))
    }
}

/// End of the connection, with a receive posted for the next message of the other end.
struct Side {
    sends: SendQueue<Part<Buffer>>,
    receives: ReceiveQueue<Buffer>,
    /// Memory for messages to the other end, while no message is in flight.
    message: Option<Buffer>,
    /// Messages that arrived while the program waited for another completion.
    heard: VecDeque<[u8; INFO]>,
    debug: bool,
    connection: Connection,
    setup: Setup,
}

impl Side {
    fn establish(
        setup: Setup,
        prepared: PreparedConnection,
        options: &Options,
    ) -> Result<Self, Failure> {
        let mut receives = prepared.queue_pair().receive_queue();
        receives.post(setup.domain.allocate(INFO)?)?;
        let connection = prepared.establish(&ConnectionParameters::default())?;
        if options.debug {
            let peer = connection.id().peer_address();
            println!(
                "connected: {peer:?}, {:?}",
                connection.queue_pair().remote()
            );
        }
        Ok(Self {
            sends: connection.queue_pair().send_queue(),
            receives,
            message: Some(setup.domain.allocate(INFO)?),
            heard: VecDeque::new(),
            debug: options.debug,
            connection,
            setup,
        })
    }

    /// Sends a message to the other end.
    fn tell(&mut self, what: [u8; INFO]) -> Result<(), Failure> {
        let mut message = self.message.take().ok_or("the last message is not sent")?;
        message.copy_from_slice(&what);
        let request = SendRequest::send(Part::new(message, 0..INFO)?);
        self.message = Some(self.carry_out(request)?);
        Ok(())
    }

    /// Waits for the next message of the other end. Returns `None` when the other end has
    /// disconnected.
    fn told(&mut self) -> Result<Option<RemoteMemory>, Failure> {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return Ok(Some(memory(&heard)));
            }
            let Some(completion) = self.completion()? else {
                return Ok(None);
            };
            self.receive(&completion)?;
        }
    }

    /// Posts a request and waits for its completion. Returns its memory.
    fn carry_out(&mut self, request: SendRequest<Part<Buffer>>) -> Result<Buffer, Failure> {
        self.sends.post(request)?;
        loop {
            let completion = self.completion()?.ok_or("the other end has left")?;
            if self.receive(&completion)? {
                continue;
            }
            completion.result()?;
            let memory = self.sends.complete(&completion).next();
            return Ok(memory.ok_or("a completion of nothing")?.into_inner());
        }
    }

    /// Keeps the message of this completion, and posts its memory again. Returns whether the
    /// completion is that of a receive.
    fn receive(&mut self, completion: &WorkCompletion) -> Result<bool, Failure> {
        let Some(memory) = self.receives.complete(completion) else {
            return Ok(false);
        };
        completion.result()?;
        if completion.len() != INFO {
            return Err(format!("the other end told {} bytes", completion.len()).into());
        }
        self.heard.push_back(memory[..].try_into()?);
        self.receives.post(memory)?;
        Ok(true)
    }

    /// Waits for the next completion. Returns `None` when the other end has disconnected.
    fn completion(&mut self) -> Result<Option<WorkCompletion>, Failure> {
        let queue = self.connection.queue_pair().send_completions();
        let deadline = Instant::now() + MAX_WAIT;
        let mut room = [WorkCompletion::default()];
        loop {
            let connected = self.connection.is_connected()?;
            // Completions that arrived before this raise no event, so the queue is polled once
            // more.
            queue.request_notification()?;
            if let [completion] = queue.poll(&mut room)? {
                if self.debug {
                    println!("{completion:?}");
                }
                // A disconnect flushes the receive.
                let flushed = completion.status() == WorkStatus::Flushed;
                return Ok((!flushed || connected).then_some(*completion));
            }
            if !connected {
                return Ok(None);
            }
            if Instant::now() > deadline {
                return Err(format!("nothing happened for {MAX_WAIT:?}").into());
            }
            // The disconnect arrives on another descriptor, which is therefore checked every 20 ms.
            self.setup.channel.wait(Some(Duration::from_millis(20)))?;
            self.setup.channel.drain(|_| ())?;
        }
    }
}
