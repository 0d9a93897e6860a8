//! The status of completed work requests.

use std::fmt;

use ibverbs_sys::ibv_wc_status as raw;

/// The party that caused a request to fail: this process, the peer's process, the path between the
/// two, or the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatusClass {
    /// The request succeeded.
    Success,
    /// The cause is in this process: the request, its memory, or the settings of the queue pair.
    Local,
    /// The cause is in the peer's process: the access that the peer granted, its receives, or its
    /// requests.
    Remote,
    /// The cause is on the path between the two processes: the peer is unreachable or gone.
    Path,
    /// The cause is an earlier failure of the same queue pair, or a move of that queue pair to the
    /// error state.
    Flushed,
    /// The cause is in the device or its driver.
    Device,
    /// The cause is unknown, because the crate does not know the status.
    Unknown,
}

macro_rules! statuses {
    ($($name:ident = $constant:ident, $class:ident, $text:literal, $hint:literal;)*) => {
        /// The status of a completed work request (`ibv_wc_status`; IBTA volume 1, 11.6.2).
        #[doc(alias = "ibv_wc_status")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum WorkStatus {
            $(#[doc = $text] $name,)*
            /// A value that this crate does not know.
            Unknown(u32),
        }

        impl WorkStatus {
            #[cfg(test)]
            const KNOWN: &[Self] = &[$(Self::$name),*];

            #[inline]
            pub(crate) fn from_raw(status: raw) -> Self {
                match status {
                    $(raw::$constant => Self::$name,)*
                    raw(other) => Self::Unknown(other),
                }
            }

            /// Returns the party that caused a request with this status to fail, for example the
            /// peer.
            pub fn class(self) -> StatusClass {
                match self {
                    $(Self::$name => StatusClass::$class,)*
                    Self::Unknown(_) => StatusClass::Unknown,
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown(_) => "unknown status",
                }
            }

            /// Returns the usual cause of the failure, or `None` for success and for unknown
            /// values.
            pub fn hint(self) -> Option<&'static str> {
                let hint = match self {
                    $(Self::$name => $hint,)*
                    Self::Unknown(_) => "",
                };
                (!hint.is_empty()).then_some(hint)
            }
        }
    };
}

statuses! {
    Success = IBV_WC_SUCCESS, Success, "success", "";
    LocalLength = IBV_WC_LOC_LEN_ERR, Local, "local length error",
        "the message is longer than the receive buffer or the port's largest message";
    LocalQueuePairOperation = IBV_WC_LOC_QP_OP_ERR, Local, "local queue pair operation error",
        "the request is malformed for this queue pair";
    LocalEndToEndContext = IBV_WC_LOC_EEC_OP_ERR, Local, "local end-to-end context error",
        "a status of reliable datagrams, which no device supports";
    LocalProtection = IBV_WC_LOC_PROT_ERR, Local, "local protection error",
        "the local memory is not registered in this queue pair's protection domain, or not for this access";
    Flushed = IBV_WC_WR_FLUSH_ERR, Flushed, "work request flushed",
        "the queue pair is in the error state: its first failed completion has the cause";
    MemoryWindowBind = IBV_WC_MW_BIND_ERR, Local, "memory window bind error",
        "the region does not allow windows, does not cover the range, or the window is of another domain";
    BadResponse = IBV_WC_BAD_RESP_ERR, Remote, "bad response", "the peer's answer was unexpected";
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, Local, "local access error",
        "an RDMA write with immediate data had no access to local memory";
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR, Remote, "remote invalid request",
        "the peer rejected the request: its queue pair does not allow the operation, or a length does not fit";
    RemoteAccess = IBV_WC_REM_ACCESS_ERR, Remote, "remote access error",
        "the range is outside of what the remote key grants, the access is not granted, or the key is gone";
    RemoteOperation = IBV_WC_REM_OP_ERR, Remote, "remote operation error",
        "the peer could not finish the operation: the memory of its receive was not valid, or its queue pair failed";
    RetryExceeded = IBV_WC_RETRY_EXC_ERR, Path, "transport retry count exceeded",
        "the peer does not answer: it is gone, its queue pair is in error, or the path is wrong (GID, MTU)";
    RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR, Remote, "receiver-not-ready retry count exceeded",
        "the peer has posted no receive";
    LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR, Local, "local RDD violation",
        "a status of reliable datagrams, which no device supports";
    RemoteInvalidRdRequest = IBV_WC_REM_INV_RD_REQ_ERR, Remote, "remote invalid RD request",
        "a status of reliable datagrams, which no device supports";
    RemoteAborted = IBV_WC_REM_ABORT_ERR, Remote, "remote aborted",
        "the peer ended the operation";
    InvalidEndToEndContextNumber = IBV_WC_INV_EECN_ERR, Local, "invalid end-to-end context number",
        "a status of reliable datagrams, which no device supports";
    InvalidEndToEndContextState = IBV_WC_INV_EEC_STATE_ERR, Local, "invalid end-to-end context state",
        "a status of reliable datagrams, which no device supports";
    Fatal = IBV_WC_FATAL_ERR, Device, "fatal error",
        "the device has failed: close it and open it again";
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, Path, "response timeout",
        "the peer did not answer in time";
    General = IBV_WC_GENERAL_ERR, Device, "general error",
        "the device reports no cause: the vendor code may name one";
    TagMatching = IBV_WC_TM_ERR, Remote, "tag matching error",
        "the message does not follow the tag-matching protocol";
    TagMatchingRendezvousIncomplete = IBV_WC_TM_RNDV_INCOMPLETE, Local,
        "tag matching rendezvous incomplete",
        "the device leaves the rest of the rendezvous to the program";
}

impl WorkStatus {
    /// Returns whether the request succeeded.
    #[inline]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }

    /// Returns whether a repetition of the failed request can succeed. A failed request leaves the
    /// queue pair in the error state, so the program must first reset or recreate the queue pair.
    /// The peer may have executed an atomic operation that failed at this side. Repeating the
    /// operation then changes the memory a second time.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Flushed
                | Self::RetryExceeded
                | Self::RnrRetryExceeded
                | Self::ResponseTimeout
                | Self::RemoteAborted
        )
    }
}

impl fmt::Display for WorkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(value) => write!(f, "unknown status {value}"),
            known => f.write_str(known.text()),
        }
    }
}

/// The error of a work request that did not succeed. `Debug` prints the same text as `Display`.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "work request on queue pair {queue_pair:#x} failed: {status}{}{}",
    vendor_text(*vendor),
    hint_text(*status)
)]
#[non_exhaustive]
pub struct WorkError {
    /// The status of the request.
    pub status: WorkStatus,
    /// The vendor-specific error code, or 0 if the device has no code for this failure.
    pub vendor: u32,
    /// The number of the queue pair of the request.
    pub queue_pair: u32,
}

impl fmt::Debug for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn vendor_text(vendor: u32) -> String {
    match vendor {
        0 => String::new(),
        code => format!(", vendor code {code:#x}"),
    }
}

fn hint_text(status: WorkStatus) -> String {
    let hint = status.hint();
    hint.map(|hint| format!(" ({hint})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_kept() {
        assert_eq!(WorkStatus::from_raw(raw(9999)), WorkStatus::Unknown(9999));
        assert_eq!(WorkStatus::from_raw(raw(0)), WorkStatus::Success);
    }

    #[test]
    fn every_failure_has_a_class_and_a_hint() {
        for &status in WorkStatus::KNOWN {
            assert_eq!(
                status.class() == StatusClass::Success,
                status.is_success(),
                "{status:?}"
            );
            assert_eq!(status.hint().is_none(), status.is_success(), "{status:?}");
            let local = matches!(status.class(), StatusClass::Local | StatusClass::Success);
            assert!(!(local && status.is_retryable()), "{status:?}");
        }
        let unknown = WorkStatus::Unknown(77);
        assert_eq!(unknown.class(), StatusClass::Unknown);
        assert!(!unknown.is_success() && !unknown.is_retryable());
        assert_eq!(unknown.to_string(), "unknown status 77");
    }

    #[test]
    fn errors_say_what_to_look_for() {
        let error = WorkError {
            status: WorkStatus::RemoteAccess,
            vendor: 0,
            queue_pair: 17,
        };
        let text = error.to_string();
        assert!(text.starts_with("work request on queue pair 0x11 failed: remote access error ("));
    }
}
