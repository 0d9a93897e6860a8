//! [`Address`]: the transport and the location of a server.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;
use crate::link::MemoryPort;

/// Address at which a server listens and clients connect: `rdma://host:port`, `tcp://host:port`, or
/// an address in the memory of this process. A text without a scheme is an RDMA address.
///
/// ```
/// use rdma_rpc::Address;
///
/// let address: Address = "tcp://127.0.0.1:7471".parse().unwrap();
/// assert_eq!(address.to_string(), "tcp://127.0.0.1:7471");
/// let address: Address = "10.77.0.1:7471".parse().unwrap();
/// assert_eq!(address.to_string(), "rdma://10.77.0.1:7471");
/// assert!("http://10.77.0.1:80".parse::<Address>().is_err());
/// ```
#[derive(Debug, Clone)]
pub struct Address(pub(crate) AddressKind);

#[derive(Debug, Clone)]
pub(crate) enum AddressKind {
    Rdma(String),
    Tcp(String),
    Memory(MemoryPort),
}

impl Address {
    /// Creates an address in the memory of this process, for tests of services. Each call of this
    /// function returns a different address. Clones refer to the same address.
    ///
    /// ```
    /// # use rdma_rpc::{Address, CallError, Context, Server};
    /// #[rdma_rpc::service]
    /// trait Doubler {
    ///     async fn double(&self, cx: &Context, number: u32) -> Result<u32, String>;
    /// }
    ///
    /// struct ByAddition;
    ///
    /// impl Doubler for ByAddition {
    ///     async fn double(&self, _: &Context, number: u32) -> Result<u32, String> {
    ///         Ok(number + number)
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), CallError<String>> {
    /// let server = Server::new(DoublerServer::new(ByAddition)).listen(Address::memory()).await?;
    /// let client = DoublerClient::connect(server.address()).await?;
    /// assert_eq!(client.double(4).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory() -> Self {
        Self(AddressKind::Memory(MemoryPort::new()))
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |reason| {
            Err(Error::Address {
                text: text.to_owned(),
                reason,
            })
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("rdma", text));
        if !rest.contains(':') {
            return refuse("it has no port");
        }
        match scheme {
            "rdma" => Ok(Self(AddressKind::Rdma(rest.to_owned()))),
            "tcp" => Ok(Self(AddressKind::Tcp(rest.to_owned()))),
            _ => refuse("it begins with neither rdma:// nor tcp://"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AddressKind::Rdma(address) => write!(f, "rdma://{address}"),
            AddressKind::Tcp(address) => write!(f, "tcp://{address}"),
            AddressKind::Memory(_) => f.write_str("memory"),
        }
    }
}

/// Conversion to an [`Address`] from a text such as `tcp://host:port`, an RDMA socket address, or
/// another [`Address`].
pub trait ToAddress {
    /// Converts the value to an address.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is not an address.
    fn to_address(&self) -> Result<Address, Error>;
}

impl ToAddress for Address {
    fn to_address(&self) -> Result<Address, Error> {
        Ok(self.clone())
    }
}

impl ToAddress for str {
    fn to_address(&self) -> Result<Address, Error> {
        self.parse()
    }
}

impl ToAddress for String {
    fn to_address(&self) -> Result<Address, Error> {
        self.parse()
    }
}

impl ToAddress for SocketAddr {
    fn to_address(&self) -> Result<Address, Error> {
        Ok(Address(AddressKind::Rdma(self.to_string())))
    }
}

impl<T: ToAddress + ?Sized> ToAddress for &T {
    fn to_address(&self) -> Result<Address, Error> {
        (**self).to_address()
    }
}

/// Description of the remote end of a connection: its transport, address and TLS certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub(crate) transport: Transport,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) certificate: Option<Arc<[u8]>>,
}

/// Kind of transport that carries the messages of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// An RDMA connection.
    Rdma,
    /// A TCP connection.
    Tcp,
    /// A connection within this process.
    Memory,
}

impl Peer {
    /// Returns the transport, such as RDMA or TCP, of the connection to this peer.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the DER encoding of the peer's certificate, which TLS has verified, or `None`
    /// without TLS, or if the peer has sent no certificate.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.certificate.as_deref()
    }

    /// Returns the socket address of the peer, or `None` for a connection within this process.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.transport, self.address) {
            (Transport::Rdma, Some(address)) => write!(f, "rdma://{address}"),
            (Transport::Tcp, Some(address)) => write!(f, "tcp://{address}"),
            _ => f.write_str("memory"),
        }
    }
}
