//! The librdmacm calls on a connection identifier: addresses, connections and options.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;

use ibverbs_sys as sys;

use super::id::{IdHandle, describe};
use super::{checked, socket_address};
use crate::error::Result;
use crate::ffi::queue_pair::empty_attributes;

impl IdHandle {
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut raw = socket_address::to_raw(address);
        self.with(|id| {
            // SAFETY: the identifier and the address are valid.
            let returned = unsafe { sys::rdma_bind_addr(id, (&raw mut raw).cast()) };
            checked(returned, "rdma_bind_addr", || address.to_string())
        })
    }

    pub(crate) fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        milliseconds: i32,
    ) -> Result<()> {
        let mut source = source.map(socket_address::to_raw);
        let mut raw = socket_address::to_raw(destination);
        let source = source.as_mut().map_or(ptr::null_mut(), |source| {
            (source as *mut libc::sockaddr_storage).cast()
        });
        self.with(|id| {
            // SAFETY: the identifier and the addresses are valid, or null for no source.
            let returned =
                unsafe { sys::rdma_resolve_addr(id, source, (&raw mut raw).cast(), milliseconds) };
            checked(returned, "rdma_resolve_addr", || destination.to_string())
        })
    }

    pub(crate) fn resolve_route(&self, milliseconds: i32) -> Result<()> {
        self.with_device("rdma_resolve_route", |id| {
            // SAFETY: the identifier is valid and has a device.
            unsafe { sys::rdma_resolve_route(id, milliseconds) }
        })
    }

    pub(crate) fn listen(&self, backlog: i32) -> Result<()> {
        self.with(|id| {
            // SAFETY: the identifier is valid.
            let returned = unsafe { sys::rdma_listen(id, backlog) };
            checked(returned, "rdma_listen", || describe(id))
        })
    }

    /// Sends a connect request to the peer, with the connection parameters `parameters` and the
    /// private data `data`.
    pub(crate) fn connect(&self, parameters: &sys::rdma_conn_param, data: &[u8]) -> Result<()> {
        let mut parameters = with_data(parameters, data);
        self.with_device("rdma_connect", |id| {
            // SAFETY: the identifier is valid and has a device; the parameters and their private
            // data are valid during the call, which copies them.
            unsafe { sys::rdma_connect(id, &mut parameters) }
        })
    }

    /// Accepts the connect request of this identifier, with the connection parameters `parameters`
    /// and the private data `data`.
    pub(crate) fn accept(&self, parameters: &sys::rdma_conn_param, data: &[u8]) -> Result<()> {
        let mut parameters = with_data(parameters, data);
        self.with_device("rdma_accept", |id| {
            // SAFETY: the identifier is valid and has a device; the parameters and their private
            // data are valid during the call, which copies them.
            unsafe { sys::rdma_accept(id, &mut parameters) }
        })
    }

    /// Rejects the connect request of this identifier, with the private data `data`. If `ece` is
    /// `true`, the rejection states that the peer's enhanced connection establishment (ECE) options
    /// are not acceptable.
    pub(crate) fn reject(&self, data: &[u8], ece: bool) -> Result<()> {
        let verb = if ece {
            "rdma_reject_ece"
        } else {
            "rdma_reject"
        };
        let (pointer, len) = (data.as_ptr().cast(), data.len() as u8);
        self.with_device(verb, |id| {
            // SAFETY: the identifier is valid, and `data` is valid during the call, which copies
            // it. The caller has checked its length; here it can only be truncated.
            unsafe {
                if ece {
                    sys::rdma_reject_ece(id, pointer, len)
                } else {
                    sys::rdma_reject(id, pointer, len)
                }
            }
        })
    }

    pub(crate) fn establish(&self) -> Result<()> {
        self.with_device("rdma_establish", |id| {
            // SAFETY: the identifier is valid and has a device.
            unsafe { sys::rdma_establish(id) }
        })
    }

    pub(crate) fn disconnect(&self) -> Result<()> {
        self.with_device("rdma_disconnect", |id| {
            // SAFETY: the identifier is valid and has a device.
            unsafe { sys::rdma_disconnect(id) }
        })
    }

    pub(crate) fn notify_established(&self) -> Result<()> {
        self.with_device("rdma_notify", |id| {
            let event = sys::ibv_event_type::IBV_EVENT_COMM_EST;
            // SAFETY: the identifier is valid and has a device.
            unsafe { sys::rdma_notify(id, event) }
        })
    }

    /// Returns the attributes that move the queue pair of this connection to `state`, and the mask
    /// of the attributes that are set.
    pub(crate) fn queue_pair_attributes(
        &self,
        state: sys::ibv_qp_state,
    ) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_attr_mask)> {
        let mut attributes = empty_attributes();
        attributes.qp_state = state;
        let mut mask = 0;
        self.with_device("rdma_init_qp_attr", |id| {
            // SAFETY: the identifier is valid and has a device; both places are valid.
            unsafe { sys::rdma_init_qp_attr(id, &mut attributes, &mut mask) }
        })?;
        Ok((attributes, sys::ibv_qp_attr_mask(mask as _)))
    }

    /// Sets an option of this connection identifier by `rdma_set_option`. `T` must be the C type of
    /// the option's value.
    fn set_option<T: Copy>(&self, level: u32, option: u32, mut value: T) -> Result<()> {
        self.with(|id| {
            let place: *mut c_void = (&raw mut value).cast();
            // SAFETY: the identifier and the value of this size are valid.
            let returned = unsafe {
                sys::rdma_set_option(id, level as _, option as _, place, size_of::<T>() as _)
            };
            checked(returned, "rdma_set_option", || describe(id))
        })
    }

    pub(crate) fn set_type_of_service(&self, value: u8) -> Result<()> {
        self.set_option(sys::RDMA_OPTION_ID, sys::RDMA_OPTION_ID_TOS, value)
    }

    pub(crate) fn set_reuse_address(&self, reuse: bool) -> Result<()> {
        let value = c_int::from(reuse);
        self.set_option(sys::RDMA_OPTION_ID, sys::RDMA_OPTION_ID_REUSEADDR, value)
    }

    pub(crate) fn set_address_family_only(&self, only: bool) -> Result<()> {
        let value = c_int::from(only);
        self.set_option(sys::RDMA_OPTION_ID, sys::RDMA_OPTION_ID_AFONLY, value)
    }

    pub(crate) fn set_ack_timeout(&self, exponent: u8) -> Result<()> {
        self.set_option(
            sys::RDMA_OPTION_ID,
            sys::RDMA_OPTION_ID_ACK_TIMEOUT,
            exponent,
        )
    }

    pub(crate) fn set_local_ece(&self, mut ece: sys::ibv_ece) -> Result<()> {
        self.with(|id| {
            // SAFETY: the identifier and the options, which the call copies, are valid.
            let returned = unsafe { sys::rdma_set_local_ece(id, &mut ece) };
            checked(returned, "rdma_set_local_ece", || describe(id))
        })
    }

    pub(crate) fn remote_ece(&self) -> Result<sys::ibv_ece> {
        let mut ece = sys::ibv_ece {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        };
        self.with(|id| {
            // SAFETY: the identifier and the place for the answer are valid.
            let returned = unsafe { sys::rdma_get_remote_ece(id, &mut ece) };
            checked(returned, "rdma_get_remote_ece", || describe(id))
        })?;
        Ok(ece)
    }
}

fn with_data(parameters: &sys::rdma_conn_param, data: &[u8]) -> sys::rdma_conn_param {
    let mut parameters = *parameters;
    parameters.private_data = data.as_ptr().cast();
    // Callers have checked that the length is below 256, the limit of this field.
    parameters.private_data_len = data.len() as u8;
    parameters
}
