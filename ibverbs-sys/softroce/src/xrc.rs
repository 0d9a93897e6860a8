//! XRC domains. A domain contains XRC target queue pairs, and the shared receive queues to which
//! peers of these queue pairs may send (IBTA annex A14).
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::context::{DomainId, HasUsage, Refusal, Usage};

/// Handle of an XRC domain (domain for extended reliable connections), returned by one call of
/// `ibv_open_xrcd`. Calls for the same file return separate handles with the same domain ID. Each
/// handle counts the objects that were created with it.
#[derive(Debug)]
pub struct XrcDomain {
    id: DomainId,
    file: Option<File>,
    usage: Usage,
}

/// Identity of a file: its device and inode numbers.
pub type File = (u64, u64);

/// Table of the XRC domains (domains for extended reliable connections) of this process that are
/// identified by files.
///
/// Each process has its own device, so another process that opens the same file gets another
/// domain.
#[derive(Debug, Default)]
pub struct XrcDomains {
    of_files: Mutex<HashMap<File, Opened>>,
}

#[derive(Debug)]
struct Opened {
    id: DomainId,
    times: usize,
}

impl XrcDomain {
    /// Returns the ID of the XRC domain. All handles that were opened with the same file have the
    /// same ID.
    pub fn id(&self) -> DomainId {
        self.id
    }
}

impl HasUsage for XrcDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl XrcDomains {
    /// Opens the XRC domain of the file `file`. Without a file, creates a new domain
    /// (`ibv_open_xrcd(3)`). `create` permits creating a domain (`O_CREAT`). If `exclusive` is also
    /// set, the file must not have a domain yet (`O_EXCL`).
    pub fn open(
        &self,
        file: Option<File>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<XrcDomain>, OpenError> {
        let id = match file {
            None if create => DomainId::unique(),
            None => return Err(OpenError::NoFile),
            Some(file) => {
                let mut of_files = self.of_files.lock();
                match of_files.get_mut(&file) {
                    Some(_) if create && exclusive => return Err(OpenError::AlreadyExists),
                    Some(opened) => {
                        opened.times += 1;
                        opened.id
                    }
                    None if create => {
                        let id = DomainId::unique();
                        of_files.insert(file, Opened { id, times: 1 });
                        id
                    }
                    None => return Err(OpenError::NotFound),
                }
            }
        };
        Ok(Arc::new(XrcDomain {
            id,
            file,
            usage: Usage::default(),
        }))
    }

    /// Closes `domain`, which `ibv_open_xrcd` has returned. Fails while queue pairs or shared
    /// receive queues use this handle.
    pub fn close(&self, domain: &XrcDomain) -> Result<(), Refusal> {
        domain.usage.close()?;
        if let Some(file) = domain.file {
            let mut of_files = self.of_files.lock();
            if let Some(opened) = of_files.get_mut(&file) {
                opened.times -= 1;
                if opened.times == 0 {
                    of_files.remove(&file);
                }
            }
        }
        Ok(())
    }
}

/// Reason for which `ibv_open_xrcd` cannot open an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The program gave no file, and did not request a new domain (`O_CREAT`).
    #[error("a domain without a file has to be created")]
    NoFile,
    /// The program requested a new domain (`O_EXCL`), but the file already has a domain.
    #[error("the file has an XRC domain already")]
    AlreadyExists,
    /// The file has no domain, and the program did not request a new one (`O_CREAT`).
    #[error("the file has no XRC domain")]
    NotFound,
}

impl OpenError {
    /// Returns the error number that `ibv_open_xrcd` sets for this error. The manual page does not
    /// define the numbers, so they are the same as the kernel's.
    pub fn errno(self) -> i32 {
        match self {
            Self::NoFile | Self::AlreadyExists => libc::EINVAL,
            Self::NotFound => libc::EAGAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{OpenError, XrcDomains};
    use crate::context::{InUse, Refusal};

    const FILE: Option<(u64, u64)> = Some((1, 2));

    #[test]
    fn a_file_has_one_domain_while_the_domain_is_open() {
        let domains = XrcDomains::default();
        let open = |create, exclusive| domains.open(FILE, create, exclusive);
        assert_eq!(open(false, false).unwrap_err(), OpenError::NotFound);
        let first = open(true, true).unwrap();
        assert_eq!(open(true, true).unwrap_err(), OpenError::AlreadyExists);
        let second = open(true, false).unwrap();
        let third = open(false, true).unwrap();
        assert!(first.id() == second.id() && second.id() == third.id());
        assert!(!Arc::ptr_eq(&first, &second));
        for domain in [first, second, third] {
            assert_eq!(open(true, true).unwrap_err(), OpenError::AlreadyExists);
            assert_eq!(domains.close(&domain), Ok(()));
        }
        assert!(open(true, true).is_ok());
    }

    #[test]
    fn each_domain_without_a_file_is_a_new_domain() {
        let domains = XrcDomains::default();
        let one = domains.open(None, true, true).unwrap();
        let two = domains.open(None, true, false).unwrap();
        assert_ne!(one.id(), two.id());
        let none = domains.open(None, false, false);
        assert_eq!(none.unwrap_err(), OpenError::NoFile);
    }

    #[test]
    fn a_domain_in_use_is_not_closed() {
        let domains = XrcDomains::default();
        let one = domains.open(FILE, true, false).unwrap();
        let two = domains.open(FILE, false, false).unwrap();
        let held = InUse::new(&one).unwrap();
        assert_eq!(domains.close(&one), Err(Refusal::Busy));
        assert_eq!(domains.close(&two), Ok(()));
        drop(held);
        assert_eq!(domains.close(&one), Ok(()));
        assert_eq!(domains.close(&one), Err(Refusal::Busy));
        let again = domains.open(FILE, false, false);
        assert_eq!(again.unwrap_err(), OpenError::NotFound);
    }
}
