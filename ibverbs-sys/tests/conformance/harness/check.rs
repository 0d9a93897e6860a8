//! Early end of a case.

use std::any::Any;
use std::ffi::c_int;
use std::io::Error;
use std::panic;

/// Payload of the unwinding of a case that the device cannot run.
pub(crate) struct Ignored(pub(crate) String);

/// Ends the case as ignored, because the device does not support the tested feature.
pub(crate) fn ignore(reason: impl Into<String>) -> ! {
    // This unwinding does not call the panic hook, so nothing is printed.
    panic::resume_unwind(Box::new(Ignored(reason.into())) as Box<dyn Any + Send>)
}

/// Converts the result of a verb that returns an error number, or -1 and sets `errno`.
pub(crate) fn status(result: c_int) -> Result<(), c_int> {
    match result {
        0 => Ok(()),
        -1 => Err(errno()),
        number => Err(number),
    }
}

/// Converts the result of a verb that returns a pointer, or null and sets `errno`.
pub(crate) fn pointer<T>(result: *mut T) -> Result<*mut T, c_int> {
    if result.is_null() {
        Err(errno())
    } else {
        Ok(result)
    }
}

pub(crate) fn errno() -> c_int {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn says(number: c_int) -> String {
    let name = match number {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        libc::ENOSYS => "ENOSYS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::EBADF => "EBADF",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::ENODATA => "ENODATA",
        _ => return format!("error {number}"),
    };
    name.to_owned()
}

/// Result of a call, and the result that the specification requires.
pub(crate) trait Outcome: Sized {
    type Value;

    fn number(self) -> Result<Self::Value, c_int>;

    /// Fails the case if the call failed.
    #[track_caller]
    fn succeeds(self, verb: &str) -> Self::Value {
        match self.number() {
            Ok(value) => value,
            Err(number) => panic!("{verb} failed: {}", says(number)),
        }
    }

    /// Fails the case unless the call failed with one of the expected error numbers.
    #[track_caller]
    fn fails(self, verb: &str, expected: &[c_int]) {
        match self.number() {
            Ok(_) => panic!("{verb} succeeded; it must fail"),
            Err(number) if expected.contains(&number) => {}
            Err(number) => {
                let expected: Vec<_> = expected.iter().copied().map(says).collect();
                panic!(
                    "{verb} failed with {}, not {}",
                    says(number),
                    expected.join(" or ")
                )
            }
        }
    }

    /// Fails the case unless the call failed. The manual pages do not document the error number.
    #[track_caller]
    fn refuses(self, verb: &str) {
        assert!(self.number().is_err(), "{verb} succeeded; it must fail");
    }

    /// Ignores the case if the device reports that it does not support the verb.
    #[track_caller]
    fn supported(self, verb: &str) -> Self::Value {
        match self.number() {
            Err(number @ (libc::EOPNOTSUPP | libc::ENOSYS)) => {
                ignore(format!("{verb}: {}", says(number)))
            }
            other => other.succeeds(verb),
        }
    }
}

impl<T> Outcome for Result<T, c_int> {
    type Value = T;

    fn number(self) -> Self {
        self
    }
}

impl Outcome for c_int {
    type Value = ();

    fn number(self) -> Result<(), c_int> {
        status(self)
    }
}

impl<T> Outcome for *mut T {
    type Value = Self;

    fn number(self) -> Result<Self, c_int> {
        pointer(self)
    }
}

/// Fails the case unless `found` equals the expected value.
#[track_caller]
pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) {
    assert!(found == expected, "{what} is {found:?}, not {expected:?}");
}
