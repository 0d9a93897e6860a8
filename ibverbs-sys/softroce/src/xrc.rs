//! Domains of extended reliable connections: what an XRC target and the shared receive queues that
//! may be named to it have in common (IBTA annex A14).
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::context::{DomainId, Refusal, Shared, Usage};

/// An XRC domain as it was opened once. Who opens the same file has the same domain, with a count
/// of users of its own.
#[derive(Debug)]
pub struct XrcDomain {
    id: DomainId,
    file: Option<File>,
    usage: Usage,
}

/// A file, whatever it is called: device and inode.
pub type File = (u64, u64);

/// The XRC domains of this process that belong to a file.
///
/// The device is the process's own, so other processes that open the file have domains of their own.
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
    /// The same for all who opened the same file.
    pub fn id(&self) -> DomainId {
        self.id
    }
}

impl Shared for XrcDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl XrcDomains {
    /// Opens the domain of a file, or one that belongs to none: `ibv_open_xrcd(3)`. `create`: it may
    /// be made (`O_CREAT`); `exclusive`: it must be (`O_EXCL`).
    pub fn open(
        &self,
        file: Option<File>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<XrcDomain>, OpenError> {
        let id = match file {
            None if create => DomainId::unique(),
            None => return Err(OpenError::Nothing),
            Some(file) => {
                let mut of_files = self.of_files.lock();
                match of_files.get_mut(&file) {
                    Some(_) if create && exclusive => return Err(OpenError::Exists),
                    Some(opened) => {
                        opened.times += 1;
                        opened.id
                    }
                    None if create => {
                        let id = DomainId::unique();
                        of_files.insert(file, Opened { id, times: 1 });
                        id
                    }
                    None => return Err(OpenError::Absent),
                }
            }
        };
        Ok(Arc::new(XrcDomain {
            id,
            file,
            usage: Usage::default(),
        }))
    }

    /// Closes a domain that was opened here; refused while queue pairs or queues use it.
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

/// Why an XRC domain was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Neither a file nor the wish for a new domain.
    #[error("a domain without a file has to be created")]
    Nothing,
    /// The file has a domain, and it should not.
    #[error("the file has an XRC domain already")]
    Exists,
    /// The file has no domain, and none shall be made.
    #[error("the file has no XRC domain")]
    Absent,
}

impl OpenError {
    /// What `ibv_open_xrcd` sets errno to: the kernel's choice, since the manual page names none.
    pub fn errno(self) -> i32 {
        match self {
            Self::Nothing | Self::Exists => libc::EINVAL,
            Self::Absent => libc::EAGAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{OpenError, XrcDomains};
    use crate::context::{Held, Refusal};

    const FILE: Option<(u64, u64)> = Some((1, 2));

    #[test]
    fn a_file_has_one_domain_as_long_as_it_is_open() {
        let domains = XrcDomains::default();
        let open = |create, exclusive| domains.open(FILE, create, exclusive);
        assert_eq!(open(false, false).unwrap_err(), OpenError::Absent);
        let first = open(true, true).unwrap();
        assert_eq!(open(true, true).unwrap_err(), OpenError::Exists);
        let second = open(true, false).unwrap();
        let third = open(false, true).unwrap();
        assert!(first.id() == second.id() && second.id() == third.id());
        assert!(!Arc::ptr_eq(&first, &second));
        for domain in [first, second, third] {
            assert_eq!(open(true, true).unwrap_err(), OpenError::Exists);
            assert_eq!(domains.close(&domain), Ok(()));
        }
        assert!(open(true, true).is_ok());
    }

    #[test]
    fn a_domain_without_a_file_is_new_each_time() {
        let domains = XrcDomains::default();
        let one = domains.open(None, true, true).unwrap();
        let two = domains.open(None, true, false).unwrap();
        assert_ne!(one.id(), two.id());
        let none = domains.open(None, false, false);
        assert_eq!(none.unwrap_err(), OpenError::Nothing);
    }

    #[test]
    fn a_domain_in_use_stays_open() {
        let domains = XrcDomains::default();
        let one = domains.open(FILE, true, false).unwrap();
        let two = domains.open(FILE, false, false).unwrap();
        let held = Held::new(&one).unwrap();
        assert_eq!(domains.close(&one), Err(Refusal::Busy));
        assert_eq!(domains.close(&two), Ok(()));
        drop(held);
        assert_eq!(domains.close(&one), Ok(()));
        assert_eq!(domains.close(&one), Err(Refusal::Busy));
        let again = domains.open(FILE, false, false);
        assert_eq!(again.unwrap_err(), OpenError::Absent);
    }
}
