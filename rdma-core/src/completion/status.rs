//! How a work request ended.

use std::fmt;

use ibverbs_sys::ibv_wc_status as raw;

macro_rules! statuses {
    ($($name:ident = $constant:ident, $text:literal, $hint:literal;)*) => {
        /// How a work request ended (`ibv_wc_status`; IBTA volume 1, 11.6.2).
        #[doc(alias = "ibv_wc_status")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum WorkStatus {
            $(#[doc = $text] $name,)*
            /// A value that this crate does not know.
            Unknown(u32),
        }

        impl WorkStatus {
            #[inline]
            pub(crate) fn from_raw(status: raw) -> Self {
                match status {
                    $(raw::$constant => Self::$name,)*
                    raw(other) => Self::Unknown(other as u32),
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown(_) => "unknown status",
                }
            }

            fn hint(self) -> &'static str {
                match self {
                    $(Self::$name => $hint,)*
                    Self::Unknown(_) => "",
                }
            }
        }
    };
}

statuses! {
    Success = IBV_WC_SUCCESS, "success", "";
    LocalLength = IBV_WC_LOC_LEN_ERR, "local length error",
        "the message is longer than the receive buffer or the port's largest message";
    LocalQueuePairOperation = IBV_WC_LOC_QP_OP_ERR, "local queue pair operation error",
        "the request is malformed for this queue pair";
    LocalEndToEndContext = IBV_WC_LOC_EEC_OP_ERR, "local end-to-end context error", "";
    LocalProtection = IBV_WC_LOC_PROT_ERR, "local protection error",
        "the local memory is not registered in this queue pair's protection domain, or not for this access";
    Flushed = IBV_WC_WR_FLUSH_ERR, "work request flushed",
        "the queue pair is in the error state: the first failed completion tells why";
    MemoryWindowBind = IBV_WC_MW_BIND_ERR, "memory window bind error", "";
    BadResponse = IBV_WC_BAD_RESP_ERR, "bad response", "the peer's answer was unexpected";
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, "local access error",
        "an RDMA write with immediate found no access to local memory";
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR, "remote invalid request",
        "the peer rejected the request: its queue pair does not allow the operation, or a length does not fit";
    RemoteAccess = IBV_WC_REM_ACCESS_ERR, "remote access error",
        "the range is outside of what the remote key grants, the access is not granted, or the key is gone";
    RemoteOperation = IBV_WC_REM_OP_ERR, "remote operation error",
        "the peer could not finish the operation";
    RetryExceeded = IBV_WC_RETRY_EXC_ERR, "transport retry count exceeded",
        "the peer does not answer: it is gone, its queue pair is in error, or the path is wrong (GID, MTU)";
    RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR, "receiver-not-ready retry count exceeded",
        "the peer has posted no receive";
    LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation", "";
    RemoteInvalidRdRequest = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request", "";
    RemoteAborted = IBV_WC_REM_ABORT_ERR, "remote aborted", "";
    InvalidEndToEndContextNumber = IBV_WC_INV_EECN_ERR, "invalid end-to-end context number", "";
    InvalidEndToEndContextState = IBV_WC_INV_EEC_STATE_ERR, "invalid end-to-end context state", "";
    Fatal = IBV_WC_FATAL_ERR, "fatal error", "";
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, "response timeout", "";
    General = IBV_WC_GENERAL_ERR, "general error", "";
    TagMatching = IBV_WC_TM_ERR, "tag matching error", "";
    TagMatchingRendezvousIncomplete = IBV_WC_TM_RNDV_INCOMPLETE,
        "tag matching rendezvous incomplete", "";
}

impl WorkStatus {
    /// Whether the request did what it should.
    #[inline]
    pub fn is_success(self) -> bool {
        self == Self::Success
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

/// A work request that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("work request on queue pair {queue_pair:#x} failed: {status}{}", hint_text(*status))]
#[non_exhaustive]
pub struct WorkError {
    /// How it ended.
    pub status: WorkStatus,
    /// The vendor's own code, for its support.
    pub vendor: u32,
    /// The number of the queue pair.
    pub queue_pair: u32,
}

fn hint_text(status: WorkStatus) -> String {
    match status.hint() {
        "" => String::new(),
        hint => format!(" ({hint})"),
    }
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
