//! Enhanced connection establishment (ECE): options that two devices negotiate.

use ibverbs_sys::ibv_ece;

/// The enhanced connection establishment (ECE) options of a vendor's device: a bit mask of optional
/// features that the vendor defines. The two sides exchange their options before they connect. Each
/// side then sets the options that both sides support.
///
/// ```
/// # fn example(prepared: &rdma_core::PreparedQueuePair, theirs: rdma_core::queue_pair::EnhancedEstablishment)
/// #     -> rdma_core::Result<()> {
/// let ours = prepared.query_ece()?;
/// if ours.vendor == theirs.vendor {
///     prepared.set_ece(ours.common(theirs))?;
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_ece")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EnhancedEstablishment {
    /// The identifier of the vendor that defines the options.
    #[doc(alias = "vendor_id")]
    pub vendor: u32,
    /// The options, as a bit mask that the vendor defines.
    pub options: u32,
}

impl EnhancedEstablishment {
    /// Returns the options that both `self` and `other` contain. If the vendors differ, the result
    /// has no options.
    pub fn common(self, other: Self) -> Self {
        let options = if self.vendor == other.vendor {
            self.options & other.options
        } else {
            0
        };
        Self { options, ..self }
    }
}

impl From<ibv_ece> for EnhancedEstablishment {
    fn from(ece: ibv_ece) -> Self {
        Self {
            vendor: ece.vendor_id,
            options: ece.options,
        }
    }
}

impl From<EnhancedEstablishment> for ibv_ece {
    fn from(ece: EnhancedEstablishment) -> Self {
        Self {
            vendor_id: ece.vendor,
            options: ece.options,
            comp_mask: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_of_one_vendor_are_common() {
        let of = |vendor, options| EnhancedEstablishment { vendor, options };
        assert_eq!(of(1, 0b110).common(of(1, 0b011)), of(1, 0b010));
        assert_eq!(of(1, 0b110).common(of(2, 0b111)), of(1, 0));
    }
}
