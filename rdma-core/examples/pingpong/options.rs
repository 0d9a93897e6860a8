//! Command line of the ping-pong examples.

use rdma_core::{AddressChoice, Context, Mtu, ProtectionDomain};

use super::Outcome;

/// Options of the command line. The [`Program`] names the letters that an example accepts.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Server to connect to. `None`: this end is the server.
    pub(crate) server: Option<String>,
    /// TCP port of the handshake.
    pub(crate) port: u16,
    pub(crate) device: Option<String>,
    pub(crate) device_port: Option<u8>,
    /// Length of a message in bytes.
    pub(crate) size: usize,
    pub(crate) mtu: Mtu,
    pub(crate) queue_pairs: usize,
    /// Number of receives to post.
    pub(crate) receives: usize,
    /// Number of messages to send, and to receive.
    pub(crate) iterations: u64,
    pub(crate) service_level: u8,
    /// Set to sleep until completion events, instead of polling.
    pub(crate) events: bool,
    pub(crate) gid_index: Option<u32>,
    /// Set to check the received bytes.
    pub(crate) check: bool,
    /// Set to print the device's time between messages.
    pub(crate) timestamps: bool,
}

/// Example: its name, its default message length, and the options that it accepts.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    /// Letters of the accepted options, each with a colon if a value follows.
    pub(crate) letters: &'static str,
}

/// All options: letter, long name and description.
const KNOWN: &[(char, &str, &str)] = &[
    (
        'p',
        "port",
        "the TCP port to listen on or to connect to (default 18515)",
    ),
    ('d', "ib-dev", "the device (default: chosen)"),
    ('i', "ib-port", "the device's port (default: chosen)"),
    ('s', "size", "how many bytes a message has"),
    ('m', "mtu", "the path MTU (default 1024)"),
    ('q', "num-qp", "how many queue pairs (default 16)"),
    (
        'r',
        "rx-depth",
        "how many receives to have posted (default 500)",
    ),
    ('n', "iters", "how many messages to exchange (default 1000)"),
    ('l', "sl", "the service level (default 0)"),
    ('e', "events", "sleep until completions are announced"),
    (
        'g',
        "gid-idx",
        "the index of the local GID (default: chosen)",
    ),
    ('t', "ts", "tell the device's time between messages"),
    ('c', "chk", "look at what is received"),
];

impl Options {
    /// Parses the arguments behind the program's name.
    pub(crate) fn parse(
        program: &Program,
        arguments: impl IntoIterator<Item = String>,
    ) -> Outcome<Self> {
        let mut options = Self {
            server: None,
            port: 18515,
            device: None,
            device_port: None,
            size: program.size,
            mtu: Mtu::Mtu1024,
            queue_pairs: 16,
            receives: 500,
            iterations: 1000,
            service_level: 0,
            events: false,
            gid_index: None,
            check: false,
            timestamps: false,
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            if let Some(long) = argument.strip_prefix("--") {
                let (name, value) = match long.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (long, None),
                };
                let known = KNOWN.iter().find(|known| known.1 == name);
                let letter = known.ok_or_else(|| program.usage(&argument))?.0;
                let value = match program.takes_value(letter) {
                    Some(true) if value.is_none() => arguments.next(),
                    _ => value,
                };
                options.set(program, letter, value, &argument)?;
            } else if let Some(letters) = argument.strip_prefix('-') {
                let mut rest = letters;
                while let Some(letter) = rest.chars().next() {
                    rest = &rest[letter.len_utf8()..];
                    let value = match program.takes_value(letter) {
                        Some(true) if rest.is_empty() => arguments.next(),
                        Some(true) => Some(std::mem::take(&mut rest).to_owned()),
                        _ => None,
                    };
                    options.set(program, letter, value, &argument)?;
                }
            } else if options.server.replace(argument.clone()).is_some() {
                return Err(program.usage(&argument).into());
            }
        }
        if options.queue_pairs > options.receives {
            return Err("fewer receives than queue pairs".into());
        }
        Ok(options)
    }

    fn set(
        &mut self,
        program: &Program,
        letter: char,
        value: Option<String>,
        argument: &str,
    ) -> Outcome<()> {
        let wrong = || program.usage(argument);
        match (program.takes_value(letter), &value) {
            (Some(true), Some(_)) | (Some(false), None) => {}
            _ => return Err(wrong().into()),
        }
        let text = value.unwrap_or_default();
        let number = || text.parse::<u32>().map_err(|_| wrong());
        match letter {
            'p' => self.port = text.parse().map_err(|_| wrong())?,
            'd' => self.device = Some(text),
            'i' => self.device_port = Some(text.parse().map_err(|_| wrong())?),
            's' => self.size = number()? as usize,
            'm' => {
                let mtu = Mtu::from_bytes(number()? as usize);
                self.mtu = mtu.ok_or_else(wrong)?;
            }
            'q' => self.queue_pairs = number()? as usize,
            'r' => self.receives = number()? as usize,
            'n' => self.iterations = number()?.into(),
            'l' => self.service_level = text.parse().map_err(|_| wrong())?,
            'e' => self.events = true,
            'g' => self.gid_index = Some(number()?),
            't' => self.timestamps = true,
            'c' => self.check = true,
            _ => return Err(wrong().into()),
        }
        Ok(())
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> Outcome<ProtectionDomain> {
        let context = match &self.device {
            Some(name) => Context::open(name)?,
            None => Context::open_default()?,
        };
        Ok(context.protection_domain()?)
    }

    /// Returns the requested port and GID.
    pub(crate) fn address(&self) -> AddressChoice {
        AddressChoice {
            port: self.device_port,
            gid_index: self.gid_index,
            ..AddressChoice::default()
        }
    }
}

impl Program {
    /// Returns whether a value follows an option, or `None` if the program does not accept the
    /// option.
    fn takes_value(&self, letter: char) -> Option<bool> {
        let at = self.letters.find(letter).filter(|_| letter != ':')?;
        Some(self.letters[at + 1..].starts_with(':'))
    }

    /// Returns a message with the wrong argument and the usage.
    fn usage(&self, argument: &str) -> String {
        let mut text = format!(
            "{argument:?} is not understood\n\
             Usage: {name} [options]           be the server\n       \
                    {name} [options] <server>  connect to the server\n",
            name = self.name
        );
        for (letter, long, what) in KNOWN {
            if let Some(takes_value) = self.takes_value(*letter) {
                let value = if takes_value { "=<value>" } else { "" };
                let long = format!("{long}{value}");
                text.push_str(&format!("  -{letter}, --{long:<20} {what}\n"));
            }
        }
        text
    }
}
