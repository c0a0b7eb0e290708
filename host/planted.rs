// SPDX-License-Identifier: GPL-2.0

/// A fault that the simulator has to find.
#[allow(dead_code, reason = "the build script plants, the test tells")]
struct Planted {
    /// What kind of fault it is.
    what: &'static str,
    /// The file of the core.
    file: &'static str,
    /// What stands there; the part in brackets is exchanged.
    right: &'static str,
    /// For that.
    wrong: &'static str,
}

/// All of them.
#[rustfmt::skip]
const PLANTED: &[Planted] = &[
    Planted { what: "room given back before the completion", file: "conn/tx.rs",
        right: "[[self.fin = self.fin.max(token.end);]]", wrong: "self.fin = self.sent;" },
    Planted { what: "late completion of a left link frees", file: "conn/tx.rs",
        right: "if [[token.epoch == self.epoch]] {", wrong: "true" },
    Planted { what: "missed roll-back", file: "conn/tx.rs",
        right: "[[self.sent = self.kept_from();]]", wrong: "" },
    Planted { what: "validation names the last message sent", file: "conn/tx.rs",
        right: "seq: [[self.seq_fin]],\n            token", wrong: "self.seq_sent" },
    Planted { what: "doubled credit", file: "conn/tx.rs",
        right: "let used = [[self.sent.since(self.peer_cons)]];", wrong: "self.sent.since(self.peer_cons) / 2" },
    Planted { what: "lost push after a completion", file: "conn/tx.rs",
        right: "|| [[(idle && self.has_work())]]", wrong: "false" },
    Planted { what: "end of data announced before the data", file: "conn/tx.rs",
        right: "if [[sent == self.prep]] {", wrong: "true" },
    Planted { what: "closed announced before the last completion", file: "conn/tx.rs",
        right: "if [[self.is_drained()]] || (self", wrong: "true" },
    Planted { what: "write crosses the end of the peer's ring", file: "conn/tx.rs",
        right: "let n = [[local.len.min(remote.len)]];", wrong: "local.len" },
    Planted { what: "lost wake of the sender by a message", file: "conn/rx.rs",
        right: "fx.push = [[self.has_work()]];", wrong: "false" },
    Planted { what: "lost wake of the reader", file: "conn/rx.rs",
        right: "fx.arrived = [[arrived.since(self.arrived)]];", wrong: "arrived.since(self.arrived).saturating_sub(1)" },
    Planted { what: "a peer that moved is taken for a liar", file: "conn/rx.rs",
        right: "self.peer_moved = [[true]];", wrong: "false" },
    Planted { what: "urgent byte read but never told", file: "conn/urgent.rs",
        right: "[[self.is_here() && told < self.mark && read >= self.mark]]", wrong: "false" },
    Planted { what: "off by one at the end of the ring", file: "cursor.rs",
        right: "let first = len.min([[ring.get().saturating_sub(offset)]]);", wrong: "ring.get().saturating_sub(offset).saturating_add(1)" },
    Planted { what: "laps do not wrap", file: "cursor.rs",
        right: "let here = [[(laps & LAPS.wrapping_sub(1))]]", wrong: "laps" },
    Planted { what: "off by one where positions meet", file: "cursor.rs",
        right: "Some(if [[ahead >= m]] {", wrong: "ahead > m" },
    Planted { what: "close of the peer lost at the end", file: "close.rs",
        right: "State::PeerFinCloseWait if [[closed]] => Some(State::Closed),", wrong: "false" },
    Planted { what: "orphan without a timer", file: "close.rs",
        right: "(false, true) => [[actions.timer = Some(Timer::Arm)]],", wrong: "()" },
    Planted { what: "two exchanges at once after the end of one", file: "group/flow.rs",
        right: "if [[!self.is_idle()]] {\n            return None;", wrong: "false" },
    Planted { what: "dropped response to CONFIRM RKEY", file: "group/respond.rs",
        right: "[[send(version, Body::ConfirmRkey(answer))]]\n        }\n        Body::DeleteRkey", wrong: "LlcReply::Ignore(Ignored::Encoding)" },
    Planted { what: "dropped response to TEST LINK", file: "group/respond.rs",
        right: "Body::TestLink(data) => [[send(version, Body::TestLink(*data))]],", wrong: "LlcReply::Ignore(Ignored::Encoding)" },
    Planted { what: "keys of other links not stored", file: "group/respond.rs",
        right: "if let Some(column) = [[column]] {", wrong: "None::<usize>" },
    Planted { what: "withdrawn key kept", file: "group/rtoken.rs",
        right: "Some(i) => {\n                [[self.clear(i);]]\n                true", wrong: "" },
    Planted { what: "key on the new link not stored", file: "group/rtoken.rs",
        right: ".is_some_and(|i| [[self.set(i, new, token).is_ok()]])", wrong: "i.get() < MAX_RTOKENS" },
    Planted { what: "telling keys ends too early", file: "group/exchange.rs",
        right: "self.ours = [[self.ours.saturating_sub(have)]];", wrong: "0" },
    Planted { what: "keys of the peer miscounted", file: "group/exchange.rs",
        right: "self.theirs = Some([[m.remaining.saturating_sub(TOKENS_PER_MESSAGE)]]);", wrong: "0" },
    Planted { what: "connections stay on a lost link", file: "group/link.rs",
        right: "[[actions.evacuate = true;]]", wrong: "" },
    Planted { what: "one connection too many in a group", file: "group.rs",
        right: "if server && ([[group.conns >= group.max_conns]]", wrong: "group.conns > group.max_conns" },
    Planted { what: "a token is given out twice", file: "group.rs",
        right: "self.last = [[self.last.next()]];", wrong: "self.last" },
];
