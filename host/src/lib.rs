// SPDX-License-Identifier: GPL-2.0

//! The protocol core of the kernel module, compiled for the host so that it can be tested.

#![no_std]
#![deny(missing_docs)]

#[path = "../../rust/proto/mod.rs"]
pub mod proto;

/// The generic functions of the core with slices in place of iterators, so that the object of
/// this crate holds code of all of them and can be searched for ways to panic.
pub mod instances {
    use crate::proto::clc::{
        self, AcceptConfirm, Agreed, Choice, Offer, Proposal, ProposalV1, ProposalV2, ServerPolicy,
    };
    use crate::proto::group::next_link_id;
    use crate::proto::ids::{Eid, LinkId, PeerId};
    use crate::proto::{DeclineReason, EncodeError};

    /// [`Proposal::encode`].
    #[inline(never)]
    pub fn encode(
        peer: PeerId,
        v1: Option<&ProposalV1<'_>>,
        v2: Option<(&ProposalV2, &[Eid])>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        Proposal::encode(peer, v1, v2.map(|(p, e)| (p, e.iter().copied())), out)
    }

    /// [`clc::choose`].
    #[inline(never)]
    pub fn choose(
        proposal: &Proposal<'_>,
        policy: &ServerPolicy,
        eids: &[Eid],
    ) -> Result<Choice, DeclineReason> {
        clc::choose(proposal, policy, eids.iter().copied())
    }

    /// [`clc::check_accept`].
    #[inline(never)]
    pub fn check_accept(
        offer: &Offer,
        eids: &[Eid],
        accept: &AcceptConfirm,
    ) -> Result<Agreed, DeclineReason> {
        clc::check_accept(offer, eids.iter().copied(), accept)
    }

    /// [`next_link_id`].
    #[inline(never)]
    pub fn link_id(last: u8, used: &[LinkId]) -> Option<LinkId> {
        next_link_id(last, used.iter().copied())
    }
}
