use super::*;

#[test]
fn the_device_has_an_identity_that_claims_no_other_vendor() {
    with_context(|context| {
        let mut device = ibv_device_attr::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { ibv_query_device(context, &raw mut device) }, 0);
        let [zero, first, ..] = device.vendor_id.to_be_bytes();
        assert_eq!(zero, 0, "the identifier has three bytes");
        // Identifiers that are assigned to organizations do not have this bit.
        assert_ne!(first & 2, 0, "{:#x}", device.vendor_id);
        assert_ne!(device.vendor_part_id, 0);
        assert_ne!(device.hw_ver, 0);
        assert_ne!(device.fw_ver[0], 0);
        assert_eq!(device.fw_ver[63], 0);
    });
}
