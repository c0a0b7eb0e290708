// SPDX-License-Identifier: GPL-2.0

//! Families of generic netlink.
//!
//! C header: [`include/net/genetlink.h`](srctree/include/net/genetlink.h)

use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
    slice,
};

use kernel::{
    error::{
        from_result,
        to_result, //
    },
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*, //
};
use smc_bindings as bindings;

use super::{
    dump_answer,
    event::Sender,
    Attrs,
    Progress, //
};
use crate::kapi::net::NetNs;

/// Who may give a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Everybody.
    All,
    /// Who administers the network of the machine.
    Admin,
    /// Who administers the network namespace.
    NamespaceAdmin,
}

/// What a command does.
pub struct Command {
    /// Its number.
    pub number: u8,
    /// Who may give it.
    pub right: Right,
    /// Does it once.
    pub single: Option<fn(&Request<'_>) -> Result>,
    /// Lists something: called again, after as much as a message holds, until it has nothing to add.
    pub dump: Option<fn(&mut Dump<'_>) -> Result>,
}

/// A family.
pub trait Family: Sized + 'static {
    /// Its name.
    const NAME: &'static CStr;
    /// Its version.
    const VERSION: u8;
    /// The greatest number of an attribute of a request.
    const MAX_ATTR: u16;
    /// Its commands.
    const COMMANDS: &'static [Command];
    /// The names of its groups of listeners.
    const GROUPS: &'static [&'static CStr] = &[];

    /// Who sends to those groups.
    fn sender() -> Option<&'static Sender> {
        None
    }

    /// The command with this number.
    fn command(number: u8) -> Option<&'static Command> {
        Self::COMMANDS.iter().find(|c| c.number == number)
    }
}

/// A request.
///
/// # Invariants
///
/// `info` is that of the call in progress.
pub struct Request<'a> {
    /// The C object.
    info: NonNull<bindings::genl_info>,
    /// The greatest number of an attribute.
    max: u16,
    /// It belongs to the call.
    _call: PhantomData<&'a bindings::genl_info>,
}

impl<'a> Request<'a> {
    /// The namespace that it came from.
    pub fn net(&self) -> &'a NetNs {
        // SAFETY: By the type invariant the object is valid, and the namespace lives for the time of the call.
        unsafe { NetNs::from_raw(bindings::genl_net(self.info.as_ptr())) }
    }

    /// The bytes of an attribute.
    pub fn attr(&self, kind: u16) -> Option<&'a [u8]> {
        if kind > self.max {
            return None;
        }
        let mut value = ptr::null();
        // SAFETY: By the type invariant the object is valid, and the number is one of the family's.
        let len =
            unsafe { bindings::genl_attribute(self.info.as_ptr(), u32::from(kind), &mut value) };
        let len = usize::try_from(len).ok()?;
        // SAFETY: The kernel has checked that the attribute lies in the request, which lives for the time of the call.
        Some(unsafe { slice::from_raw_parts(value.cast(), len) })
    }

    /// A text of less than `limit` bytes, without the zero that must be at its end.
    ///
    /// # Errors
    ///
    /// `EINVAL` without the zero; `ERANGE` when it is too long.
    pub fn text(&self, kind: u16, limit: usize) -> Result<Option<&'a [u8]>> {
        let Some(value) = self.attr(kind) else {
            return Ok(None);
        };
        let end = value.iter().position(|c| *c == 0).ok_or(EINVAL)?;
        if end >= limit {
            return Err(ERANGE);
        }
        Ok(value.get(..end))
    }

    /// Tells the tool in words why the request fails.
    pub fn explain(&self, text: &'static CStr) {
        // SAFETY: By the type invariant the object is valid; the text lives for ever.
        unsafe { bindings::genl_explain(self.info.as_ptr(), text.as_char_ptr()) };
    }

    /// Answers with the parts that `fill` adds and an end.
    pub fn reply(&self, command: u8, fill: impl FnOnce(&mut Reply<'_>) -> Result) -> Result {
        // SAFETY: The function has no requirements.
        let skb = NonNull::new(unsafe { bindings::genl_reply_new() }).ok_or(ENOMEM)?;
        let mut reply = Reply {
            skb,
            info: self.info,
            command,
            _call: PhantomData,
        };
        let outcome = fill(&mut reply).and_then(|()| {
            // SAFETY: Both objects are valid.
            to_result(unsafe { bindings::genl_reply_done(skb.as_ptr(), self.info.as_ptr()) })
        });
        if let Err(err) = outcome {
            // SAFETY: The message is ours.
            unsafe { bindings::reply_free(skb.as_ptr()) };
            return Err(err);
        }
        // SAFETY: Both objects are valid; the message is given away.
        to_result(unsafe { bindings::genl_reply_send(skb.as_ptr(), self.info.as_ptr()) })
    }
}

/// An answer of several parts to a single request.
pub struct Reply<'a> {
    /// The message.
    skb: NonNull<bindings::sk_buff>,
    /// The request.
    info: NonNull<bindings::genl_info>,
    /// What the parts are marked with.
    command: u8,
    /// It belongs to the call.
    _call: PhantomData<&'a bindings::genl_info>,
}

impl Reply<'_> {
    /// Adds a part.
    pub fn message(&mut self, fill: impl FnOnce(&mut Attrs<'_>) -> Result) -> Result {
        // SAFETY: The request is that of the call in progress.
        let (port, number, family) = unsafe {
            let info = self.info.as_ptr();
            ((*info).snd_portid, (*info).snd_seq, (*info).family)
        };
        // SAFETY: The message is ours, and the family registered.
        unsafe { put(self.skb, (port, number), family, self.command, fill) }
    }
}

/// A dump: a step of it.
///
/// # Invariants
///
/// Both are those of the call in progress.
pub struct Dump<'a> {
    /// Where the messages go.
    skb: NonNull<bindings::sk_buff>,
    /// How far it has come.
    progress: Progress<'a>,
}

impl<'a> Dump<'a> {
    /// The namespace that the request came from.
    pub fn net(&self) -> &'a NetNs {
        // SAFETY: By the type invariant the objects are valid, and the namespace lives for the time of the call.
        unsafe {
            let info = bindings::genl_dump_info(self.progress.cb.as_ptr());
            NetNs::from_raw(bindings::genl_net(info))
        }
    }

    /// Two numbers that say how far the dump has come; zero at first.
    pub fn position(&self) -> [u64; 2] {
        self.progress.get()
    }

    /// Stores them for the next step.
    pub fn set_position(&mut self, at: [u64; 2]) {
        self.progress.set(at);
    }

    /// Adds a message, marked with a command.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` when it did not fit: return that, and begin with it at the next step.
    pub fn message(&mut self, command: u8, fill: impl FnOnce(&mut Attrs<'_>) -> Result) -> Result {
        // SAFETY: By the type invariant the objects are valid.
        let (port, number, family) = unsafe {
            let cb = self.progress.cb.as_ptr();
            (
                bindings::dump_port(cb),
                (*(*cb).nlh).nlmsg_seq,
                (*bindings::genl_dump_info(cb)).family,
            )
        };
        // SAFETY: The message is that of the call, and the family registered.
        unsafe { put(self.skb, (port, number), family, command, fill) }
    }
}

/// Adds a message of a family, or nothing when it fails.
///
/// # Safety
///
/// `skb` and `family` must be valid.
unsafe fn put(
    skb: NonNull<bindings::sk_buff>,
    (port, number): (u32, u32),
    family: *const bindings::genl_family,
    command: u8,
    fill: impl FnOnce(&mut Attrs<'_>) -> Result,
) -> Result {
    // CAST: A small constant.
    let flags = bindings::NLM_F_MULTI as c_int;
    // SAFETY: The caller vouches for both.
    let head = unsafe { bindings::genlmsg_put(skb.as_ptr(), port, number, family, flags, command) };
    if head.is_null() {
        return Err(EMSGSIZE);
    }
    // INVARIANT: The message was begun above.
    let mut attrs = Attrs {
        skb,
        _call: PhantomData,
    };
    let outcome = fill(&mut attrs);
    match outcome {
        // SAFETY: The message was begun above.
        Ok(()) => unsafe { bindings::genl_message_end(skb.as_ptr(), head) },
        // SAFETY: As above.
        Err(_) => unsafe { bindings::genl_message_cancel(skb.as_ptr(), head) },
    }
    outcome
}

/// A registered family; dropping it takes it away and waits for requests in progress.
///
/// # Invariants
///
/// `family` is registered; it came from a `KBox` that nobody else owns, and points at `_ops`, `_policy` and `_groups`.
/// The sender of `F` knows no other family.
#[must_use]
pub struct Registration<F: Family> {
    /// What the kernel knows.
    family: NonNull<bindings::genl_family>,
    /// What it points at.
    _ops: KVec<bindings::genl_ops>,
    /// As well.
    _policy: KVec<bindings::nla_policy>,
    /// As well.
    _groups: KVec<bindings::genl_multicast_group>,
    /// Whose it is.
    _family: PhantomData<fn() -> F>,
}

// SAFETY: The object is only dropped, by any one task.
unsafe impl<F: Family> Send for Registration<F> {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl<F: Family> Sync for Registration<F> {}

impl<F: Family> Registration<F> {
    /// Registers the family.
    ///
    /// # Errors
    ///
    /// `EEXIST` when there is one of the name; `ENOMEM`.
    pub fn new() -> Result<Self> {
        let mut ops = KVec::with_capacity(F::COMMANDS.len(), GFP_KERNEL)?;
        for command in F::COMMANDS {
            let right = match command.right {
                Right::All => 0,
                Right::Admin => bindings::GENL_ADMIN_PERM,
                Right::NamespaceAdmin => bindings::GENL_UNS_ADMIN_PERM,
            };
            let single: unsafe extern "C" fn(_, _) -> _ = single::<F>;
            let dump: unsafe extern "C" fn(_, _) -> _ = dump::<F>;
            let op = bindings::genl_ops {
                doit: command.single.map(|_| single),
                dumpit: command.dump.map(|_| dump),
                cmd: command.number,
                // CAST: Small constants.
                flags: right as u8,
                // Tools of all ages ask, and what they send besides is not looked at.
                validate: (bindings::genl_validate_flags_GENL_DONT_VALIDATE_STRICT
                    | bindings::genl_validate_flags_GENL_DONT_VALIDATE_DUMP)
                    as u8,
                ..Default::default()
            };
            ops.push(op, GFP_KERNEL)?;
        }
        // Without one the kernel looks at no attribute. Commands check what they take.
        let mut policy = KVec::new();
        for _ in 0..=F::MAX_ATTR {
            let any = bindings::nla_policy {
                // CAST: A small constant.
                type_: bindings::NLA_BINARY as u8,
                ..Default::default()
            };
            policy.push(any, GFP_KERNEL)?;
        }
        let mut groups = KVec::with_capacity(F::GROUPS.len(), GFP_KERNEL)?;
        for name in F::GROUPS {
            let mut group = bindings::genl_multicast_group::default();
            copy_name(&mut group.name, name);
            groups.push(group, GFP_KERNEL)?;
        }
        let mut family = bindings::genl_family {
            version: u32::from(F::VERSION),
            maxattr: u32::from(F::MAX_ATTR),
            // CAST: A small number.
            n_ops: ops.len() as u8,
            ops: ops.as_ptr(),
            policy: policy.as_ptr(),
            mcgrps: groups.as_ptr(),
            // CAST: A small number.
            n_mcgrps: groups.len() as u8,
            module: kernel::module::this_module::<crate::LocalModule>()
                .as_ptr()
                .cast(),
            ..Default::default()
        };
        family.set_netnsok(1);
        // No request was ever refused for an unknown attribute of a command: all are older than that.
        // CAST: A small number.
        family.resv_start_op = F::COMMANDS
            .iter()
            .map(|c| c.number)
            .max()
            .unwrap_or(0)
            .saturating_add(1);
        copy_name(&mut family.name, F::NAME);
        let family = NonNull::from(KBox::leak(KBox::new(family, GFP_KERNEL)?));
        // SAFETY: The family and its operations live until they are unregistered in drop.
        let outcome = to_result(unsafe { bindings::genl_register_family(family.as_ptr()) });
        if let Err(err) = outcome {
            // SAFETY: The pointer came from the box above, and the kernel did not take it.
            drop(unsafe { KBox::from_raw(family.as_ptr()) });
            return Err(err);
        }
        if let Some(sender) = F::sender() {
            // SAFETY: The family is registered until `drop`, which closes the sender before.
            unsafe { sender.open(family) };
        }
        // INVARIANT: It is registered, and the box was given up. Moving a `KVec` does not move what is in it.
        Ok(Self {
            family,
            _ops: ops,
            _policy: policy,
            _groups: groups,
            _family: PhantomData,
        })
    }
}

impl<F: Family> Drop for Registration<F> {
    fn drop(&mut self) {
        if let Some(sender) = F::sender() {
            sender.close();
        }
        // SAFETY: By the type invariant it is registered.
        unsafe { bindings::genl_unregister_family(self.family.as_ptr()) };
        // SAFETY: By the type invariant the pointer came from a box, and nobody knows it any more.
        drop(unsafe { KBox::from_raw(self.family.as_ptr()) });
    }
}

/// Copies a name into a field that is zeroed and longer.
fn copy_name(field: &mut [c_char], name: &CStr) {
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().take(room).zip(name.to_bytes()) {
        // CAST: Keeps the bits.
        *to = *from as c_char;
    }
}

/// `genl_ops::doit`.
///
/// # Safety
///
/// Called by the kernel with a request of the family.
unsafe extern "C" fn single<F: Family>(
    _skb: *mut bindings::sk_buff,
    info: *mut bindings::genl_info,
) -> c_int {
    from_result(|| {
        let info = NonNull::new(info).ok_or(EINVAL)?;
        // SAFETY: The kernel hands over a valid object.
        let number = unsafe { (*(*info.as_ptr()).genlhdr).cmd };
        let command = F::command(number)
            .and_then(|c| c.single)
            .ok_or(EOPNOTSUPP)?;
        // INVARIANT: It is that of this call.
        command(&Request {
            info,
            max: F::MAX_ATTR,
            _call: PhantomData,
        })?;
        Ok(0)
    })
}

/// `genl_ops::dumpit`.
///
/// # Safety
///
/// Called by the kernel with a request of the family and room for messages.
unsafe extern "C" fn dump<F: Family>(
    skb: *mut bindings::sk_buff,
    cb: *mut bindings::netlink_callback,
) -> c_int {
    let (Some(to), Some(cb)) = (NonNull::new(skb), NonNull::new(cb)) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The kernel hands over valid objects.
    let number = unsafe { bindings::genl_dump_command(cb.as_ptr()) };
    let Some(command) = F::command(number).and_then(|c| c.dump) else {
        return EOPNOTSUPP.to_errno();
    };
    // INVARIANT: Both are those of this call.
    let mut dump = Dump {
        skb: to,
        progress: Progress {
            cb,
            _call: PhantomData,
        },
    };
    let outcome = command(&mut dump);
    // SAFETY: The kernel hands over a valid message.
    unsafe { dump_answer(skb, outcome) }
}
