// SPDX-License-Identifier: GPL-2.0

//! The exchanges that tell and withdraw keys.

use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::*;

use super::group::{KeyJob, Life, Telling, MOST_TRIES};
use super::sock::Phase;
use super::world::{Ev, World};

impl World {
    /// Begins to tell or to withdraw keys.
    pub fn tell(&mut self, h: usize, g: usize, job: KeyJob) {
        if let KeyJob::Tell { sock, .. } = &job {
            if self.socks[*sock].phase != Phase::Telling {
                // Its handshake has ended meanwhile.
                return self.soon(5, Ev::Pump(h, g));
            }
        }
        let usable = self.usable(h, g);
        let via = pick_link(&usable).unwrap();
        let others: Vec<_> = self.grp(h, g).active().filter(|c| *c != via).collect();
        let id = self.grp(h, g).flows.begin(Exchange::Rkey).unwrap();
        let mut sent = None;
        let opcode = match &job {
            KeyJob::Tell { .. } => Opcode::ConfirmRkey,
            KeyJob::Forget { .. } => Opcode::DeleteRkey,
        };
        let awaited = Awaited {
            opcode,
            response: true,
            link: Some(via),
        };
        let stamp = self.arm(h, g, id, awaited, WAIT_MS);
        match &job {
            KeyJob::Tell { sock, .. } => {
                let rmb = self.socks[*sock].rmb.unwrap();
                self.verbs.rmbs[rmb].known = true;
                let (key, vaddr) = self.verbs.rmbs[rmb].keys[via].unwrap();
                let mut m = ConfirmRkey::single(Rkey(key), Vaddr(vaddr));
                for (slot, col) in m.other_links.iter_mut().zip(&others) {
                    let link = self.hosts[h].groups[g].links[*col].as_ref().unwrap();
                    let (key, vaddr) = self.verbs.rmbs[rmb].keys[*col].unwrap();
                    *slot = LinkRtoken {
                        link_num: link.id.unwrap().get(),
                        rkey: Rkey(key),
                        vaddr: Vaddr(vaddr),
                    };
                    m.others += 1;
                }
                sent = Some(m);
                self.request(h, g, via, Body::ConfirmRkey(m));
            }
            KeyJob::Forget { rmbs } => {
                let keys: Vec<_> = rmbs
                    .iter()
                    .filter_map(|r| self.verbs.rmbs[*r].keys[via])
                    .map(|(key, _)| Rkey(key))
                    .collect();
                self.request(h, g, via, Body::DeleteRkey(DeleteRkey::request(&keys)));
            }
        }
        self.grp(h, g).telling = Some(Telling {
            id,
            job,
            via,
            sent,
            stamp,
        });
    }

    /// The peer's answer about keys.
    pub fn key_answer(&mut self, h: usize, g: usize, body: &Body<'_>) {
        let t = self.grp(h, g).telling.take().unwrap();
        let id = t.id;
        match (t.job.clone(), body) {
            (KeyJob::Tell { sock, tries }, Body::ConfirmRkey(m)) => {
                let verdict = judge_confirm_rkey(&t.sent.unwrap(), m);
                self.reach.hit("effect", "key", verdict);
                match verdict {
                    None => {
                        // Late; the right one is still to come.
                        let awaited = Awaited {
                            opcode: Opcode::ConfirmRkey,
                            response: true,
                            link: Some(t.via),
                        };
                        self.grp(h, g).flows.expect(id, awaited);
                        self.grp(h, g).telling = Some(t);
                    }
                    Some(KeyAnswer::Later) if tries < MOST_TRIES => {
                        let rmb = self.socks[sock].rmb.unwrap();
                        self.verbs.rmbs[rmb].known = false;
                        let job = KeyJob::Tell {
                            sock,
                            tries: tries + 1,
                        };
                        self.grp(h, g).jobs.push_back(job);
                        // The change of links is waited for.
                        let next = self.grp(h, g).flows.finish(id);
                        match next {
                            Some(_) => self.begin_next(h, g, next),
                            None => self.soon(1000 << tries.min(9), Ev::Pump(h, g)),
                        }
                    }
                    Some(KeyAnswer::Taken) => {
                        self.finish(h, g, id);
                        self.key_told(sock, true);
                    }
                    Some(_) => {
                        self.finish(h, g, id);
                        self.key_told(sock, false);
                    }
                }
            }
            (KeyJob::Forget { rmbs }, Body::DeleteRkey(m)) => {
                self.reach.hit("effect", "forget", m.negative);
                self.forget(h, g, &rmbs);
                self.finish(h, g, id);
            }
            (job, other) => panic!("{job:?} {other:?}"),
        }
    }

    /// Buffers are given back: the peer does not know them any more.
    pub fn forget(&mut self, h: usize, g: usize, rmbs: &[usize]) {
        for rmb in rmbs {
            self.grp(h, g).rmbs.retain(|r| r != rmb);
            for col in 0..LINK_SLOTS {
                // A buffer of a connection that has ended in good order may be used again. After an
                // abort the memory stays until the link goes, for writes that are on their way.
                if self.verbs.rmbs[*rmb].clean {
                    self.verbs.unmap(*rmb, col);
                }
            }
        }
    }

    /// A connection's buffer is not needed any more.
    pub fn retire(&mut self, h: usize, g: usize, rmb: usize) {
        self.verbs.rmbs[rmb].retired = true;
        let known = self.verbs.rmbs[rmb].known;
        let group = self.grp(h, g);
        if group.life == Life::Ending || !known {
            return self.forget(h, g, &[rmb]);
        }
        // Several are withdrawn at once.
        if let Some(KeyJob::Forget { rmbs }) = group.jobs.back_mut() {
            if rmbs.len() < 8 {
                rmbs.push(rmb);
                return;
            }
        }
        group.jobs.push_back(KeyJob::Forget { rmbs: vec![rmb] });
        self.soon(1000, Ev::Pump(h, g));
    }
}
