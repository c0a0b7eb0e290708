// SPDX-License-Identifier: GPL-2.0

//! What an operator sees of the link groups.

use kernel::sync::Arc;

use crate::kapi::rdma::Device;

use super::registry;

/// How many links there are on a port of a device.
pub(crate) fn links_on(device: &Arc<Device>, port: u32) -> u32 {
    let mut links: u32 = 0;
    registry::each_group(|group| {
        for link in group.links() {
            if link.start().is_at(device) && link.start().port() == port {
                links = links.saturating_add(1);
            }
        }
    });
    links
}

/// Whether a link group would end with the device: all its links are there.
pub(crate) fn is_critical(device: &Arc<Device>) -> bool {
    let mut critical = false;
    registry::each_group(|group| {
        let mut links = group.links().peekable();
        critical |= links.peek().is_some() && links.all(|link| link.start().is_at(device));
    });
    critical
}
