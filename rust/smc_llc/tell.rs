// SPDX-License-Identifier: GPL-2.0

//! What listeners, tracepoints and counters learn of link groups and links.

use kernel::sync::Arc;

use crate::{
    kapi::trace,
    net_ctx::{
        Cause,
        Counter,
        Event,
        LinkName, //
    },
    proto::group::LinkState,
    smc_ib::until_zero, //
};

use super::{
    group::{
        LinkGroup,
        Reason, //
    },
    link::Link, //
};

impl Link {
    /// Calls `tell` with what the link is called.
    fn named<R>(&self, group: u32, tell: impl FnOnce(LinkName<'_>) -> R) -> R {
        let device = self.start().device_name();
        tell(LinkName {
            group,
            link: self.known_id().map_or(0, |id| id.get()),
            device: until_zero(&device),
            port: self.start().port(),
        })
    }
}

impl LinkGroup {
    /// A link works; with the first one the group does.
    pub(super) fn tell_link_up(&self, link: &Link, first: bool) {
        let ctx = link.start().ctx();
        if first {
            ctx.stats().bump(Counter::GROUPS_UP);
            ctx.tell(&Event::GroupUp { group: self.id() });
        }
        ctx.stats().bump(Counter::LINKS_UP);
        link.named(self.id(), |name| ctx.tell(&Event::LinkUp(name)));
    }

    /// A link that worked ends.
    pub(super) fn tell_link_down(&self, link: &Link, cause: Cause) {
        let ctx = link.start().ctx();
        let state = LinkState::Active.number().unwrap_or(0);
        let device = link.start().device_name();
        trace::link_down(link, self, ctx.cookie(), state, device);
        ctx.stats().bump(Counter::LINKS_DOWN);
        link.named(self.id(), |name| ctx.tell(&Event::LinkDown(name, cause)));
    }

    /// Connections have left a link that goes.
    pub(super) fn tell_failover(&self, from: &Link, conns: u32) {
        if conns == 0 {
            return;
        }
        let ctx = from.start().ctx();
        ctx.stats().add(Counter::CONNS_MOVED, u64::from(conns));
        from.named(self.id(), |from| ctx.tell(&Event::Failover { from, conns }));
    }

    /// The group ends, with all links that work.
    pub(super) fn tell_group_down(&self, reason: Reason) {
        let cause = match reason {
            Reason::Program => Cause::Unused,
            Reason::Operator => Cause::Operator,
            Reason::LostPath => Cause::LostPath,
            Reason::Violation => Cause::Violation,
            Reason::ByPeer { .. } => Cause::Peer,
        };
        let works = |link: &Arc<Link>| {
            let mut state = self.llc.lock();
            state
                .column(link)
                .is_some_and(|column| column.state == LinkState::Active)
        };
        let mut last = None;
        for link in self.links().filter(works) {
            self.tell_link_down(&link, cause);
            last = Some(link);
        }
        if let Some(link) = last {
            let ctx = link.start().ctx();
            ctx.stats().bump(Counter::GROUPS_DOWN);
            ctx.tell(&Event::GroupDown {
                group: self.id(),
                cause,
            });
        }
    }
}
