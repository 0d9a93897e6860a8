//! [`SharedSecret`]: authentication by a secret that both ends know.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::authentication::{Authenticator, Transcript};

/// Authentication by a secret that both ends know: each token is the HMAC-SHA-256 (RFC 2104) of the
/// transcript.
///
/// The secret is not sent. A token is valid for one handshake, because the transcript contains a
/// nonce of each end. The packets of the connection are not protected: RoCE neither encrypts nor
/// authenticates packets.
///
/// ```
/// use rdma_async::{RdmaBuilder, SharedSecret};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let secret = SharedSecret::new(b"the secret of this cluster")?;
/// let builder = RdmaBuilder::default().authenticator(secret);
/// let mut listener = builder.clone().bind("127.0.0.1:0").await?;
/// let address = listener.local_address()?;
/// tokio::try_join!(builder.connect(address), listener.accept())?;
/// // A peer without the secret is refused.
/// let client = RdmaBuilder::default().connect(address);
/// let (client, server) = tokio::join!(client, listener.accept());
/// assert!(client.is_err() && server.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedSecret {
    keyed: Hmac<Sha256>,
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSecret").finish_non_exhaustive()
    }
}

/// Minimum length of a secret, in bytes. A random secret of this length (128 bits) cannot be
/// guessed.
const MIN_LEN: usize = 16;

impl SharedSecret {
    /// Creates an authenticator, by which each end of a connection proves that it knows `secret`.
    /// The secret must have at least 16 bytes, and should be random.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a shorter secret.
    pub fn new(secret: impl AsRef<[u8]>) -> crate::Result<Self> {
        let secret = secret.as_ref();
        if secret.len() < MIN_LEN {
            let reason = format!("{} bytes are fewer than {MIN_LEN}", secret.len());
            return Err(crate::Error::invalid("shared secret", reason));
        }
        let keyed = Hmac::new_from_slice(secret).expect("an HMAC key may have any length");
        Ok(Self { keyed })
    }

    /// Returns the HMAC (hash with the secret as the key) of the transcript of a handshake. An end
    /// sends the value of the HMAC as its token, to prove that it may connect.
    fn mac(&self, transcript: &Transcript) -> Hmac<Sha256> {
        let mut keyed = self.keyed.clone();
        keyed.update(transcript.as_bytes());
        keyed
    }
}

impl Authenticator for SharedSecret {
    fn token(&self, transcript: &Transcript) -> Vec<u8> {
        self.mac(transcript).finalize().into_bytes().to_vec()
    }

    fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<(), String> {
        // `verify_slice` compares in constant time.
        let checked = self.mac(transcript).verify_slice(token);
        checked.map_err(|_| "the token was not computed with the secret".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authentication::End;

    fn transcript(prover: End, nonce: &[u8]) -> Transcript {
        let peer = "127.0.0.1:1".parse().unwrap();
        Transcript::new(prover, peer, [nonce])
    }

    #[test]
    fn a_token_is_valid_only_for_its_end_handshake_and_secret() {
        let secret = SharedSecret::new([7; 32]).unwrap();
        let right = transcript(End::Connecting, &[1; 32]);
        let token = secret.token(&right);
        assert_eq!(secret.check(&right, &token), Ok(()));
        for other in [
            transcript(End::Accepting, &[1; 32]),
            transcript(End::Connecting, &[2; 32]),
        ] {
            assert!(secret.check(&other, &token).is_err());
        }
        let other = SharedSecret::new([8; 32]).unwrap();
        assert!(other.check(&right, &token).is_err());
        assert!(secret.check(&right, &token[..31]).is_err());
        assert!(secret.check(&right, &[]).is_err());
        assert!(SharedSecret::new([7; 15]).is_err());
    }

    #[test]
    fn tokens_equal_the_test_vector_of_rfc_4231() {
        // Test case 1: the key is 20 bytes 0x0b, and the data "Hi There".
        let mut keyed = SharedSecret::new([0x0b; 20]).unwrap().keyed;
        keyed.update(b"Hi There");
        let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        let bytes = keyed.finalize().into_bytes();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, expected);
    }
}
