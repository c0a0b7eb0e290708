// SPDX-License-Identifier: GPL-2.0

//! A work queue that belongs to the module and is gone with it, and a way to take back delayed work.
//!
//! The `kernel` crate queues work but cannot wait for it: a module that goes away would leave work items behind
//! whose code has been freed. [`ModuleQueue`] is a queue that is emptied and destroyed in the drop of its
//! [`QueueRegistration`].
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use core::ptr;

use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Release},
        Arc, //
    },
    workqueue::{HasDelayedWork, HasWork, Queue, Work, WorkItem},
};
use smc_bindings as bindings;

/// How a module's work queue serves its items.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Items may sleep for long; they run on any CPU.
    Unbound,
    /// Items are short and answer a peer that waits; they run before others.
    HighPriority,
}

/// A place for a work queue of the module: a static, empty until it is registered.
///
/// # Invariants
///
/// The pointer is null or that of a work queue which a living [`QueueRegistration`] owns.
pub struct ModuleQueue(Atomic<*mut bindings::workqueue_struct>);

impl ModuleQueue {
    /// An empty place.
    pub const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// The queue, or nothing before registration and after the module began to go.
    pub fn get(&self) -> Option<&Queue> {
        let raw = self.0.load(Acquire);
        if raw.is_null() {
            return None;
        }
        // SAFETY: By the type invariant the pointer is a valid work queue. Its owner is one of the module's last
        // registrations to be dropped: everything that can queue work has been unregistered before, except work items
        // of this very queue, which `destroy_workqueue()` waits for.
        Some(unsafe { Queue::from_raw(raw.cast()) })
    }

    /// Queues `item` and says whether it was queued: not when it is queued already or the module goes away.
    pub fn enqueue<T, const ID: u64>(&self, item: Arc<T>) -> bool
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID> + Send + Sync + 'static,
    {
        self.get()
            .is_some_and(|queue| queue.enqueue::<Arc<T>, ID>(item).is_ok())
    }

    /// Queues `item` after `delay` jiffies; the same answers as [`enqueue`](Self::enqueue).
    pub fn enqueue_delayed<T, const ID: u64>(
        &self,
        item: Arc<T>,
        delay: kernel::time::Jiffies,
    ) -> bool
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID> + Send + Sync + 'static,
    {
        self.get()
            .is_some_and(|queue| queue.enqueue_delayed::<Arc<T>, ID>(item, delay).is_ok())
    }

    /// Makes the queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EBUSY` when the place is taken.
    pub fn register(&'static self, name: &'static CStr, kind: Kind) -> Result<QueueRegistration> {
        let flags = match kind {
            Kind::Unbound => bindings::wq_flags_WQ_UNBOUND,
            Kind::HighPriority => bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags_WQ_HIGHPRI,
        };
        // SAFETY: `name` is a valid C string; the helper passes it through a "%s" format, which copies it.
        let raw = unsafe { bindings::smc_alloc_workqueue(name.as_char_ptr(), flags) };
        if raw.is_null() {
            return Err(ENOMEM);
        }
        if !self.0.load(Acquire).is_null() {
            // SAFETY: The queue was made above and nobody else knows it.
            unsafe { bindings::destroy_workqueue(raw) };
            return Err(EBUSY);
        }
        // INVARIANT: The registration returned below owns the queue.
        self.0.store(raw, Release);
        Ok(QueueRegistration { place: self })
    }
}

/// Owns a module's work queue; dropping it waits for every queued item, then destroys the queue.
#[must_use]
pub struct QueueRegistration {
    /// Where the queue is found.
    place: &'static ModuleQueue,
}

impl QueueRegistration {
    /// Waits until every item that is queued now has run.
    pub fn flush(&self) {
        let raw = self.place.0.load(Acquire);
        // SAFETY: By the invariant of `ModuleQueue` the queue lives as long as this registration.
        unsafe { bindings::smc_flush_workqueue(raw) };
    }
}

impl Drop for QueueRegistration {
    fn drop(&mut self) {
        let raw = self.place.0.load(Acquire);
        // SAFETY: This registration owns the queue. Items that queue themselves again are waited for, too.
        unsafe { bindings::destroy_workqueue(raw) };
        // INVARIANT: The queue is gone, and so is its pointer.
        self.place.0.store(ptr::null_mut(), Release);
    }
}

/// Takes back a work item that waits for its turn or its time, and drops the reference that the queue held.
///
/// Says whether it was taken back; a running item goes on running.
pub fn cancel<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID>,
{
    let owner = Arc::as_ptr(item).cast_mut();
    // SAFETY: `owner` points at a valid `T`, as `item` is a reference to it.
    let work = unsafe { T::raw_get_work(owner) };
    // SAFETY: `raw_get_work` returned a valid pointer.
    let raw = unsafe { Work::raw_get(work) };
    // SAFETY: `raw` is an initialised work item that `item` keeps alive.
    let taken = unsafe { bindings::cancel_work(raw.cast()) };
    if taken {
        drop_queue_reference(item);
    }
    taken
}

/// As [`cancel`], for an item whose delay may still run.
pub fn cancel_delayed<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID>,
{
    let raw = raw_delayed::<T, ID>(item);
    // SAFETY: `raw` is an initialised delayed work item that `item` keeps alive.
    let taken = unsafe { bindings::cancel_delayed_work(raw) };
    if taken {
        drop_queue_reference(item);
    }
    taken
}

/// As [`cancel_delayed`], and waits until the item does not run any more. May sleep.
pub fn cancel_delayed_sync<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID>,
{
    let raw = raw_delayed::<T, ID>(item);
    // SAFETY: `raw` is an initialised delayed work item that `item` keeps alive.
    let taken = unsafe { bindings::cancel_delayed_work_sync(raw) };
    if taken {
        drop_queue_reference(item);
    }
    taken
}

/// The C `delayed_work` inside `item`.
fn raw_delayed<T, const ID: u64>(item: &Arc<T>) -> *mut bindings::delayed_work
where
    T: HasDelayedWork<T, ID>,
{
    let owner = Arc::as_ptr(item).cast_mut();
    // SAFETY: `owner` points at a valid `T`, as `item` is a reference to it.
    let work = unsafe { T::raw_get_work(owner) };
    // CAST: By the contract of `HasDelayedWork` the work is the first field of a `delayed_work`.
    work.cast()
}

/// Drops the reference that a queue held of an item which was taken back before it ran.
fn drop_queue_reference<T>(item: &Arc<T>) {
    // SAFETY: Queueing turned an `Arc` into a raw pointer; the item will not run, so that this reference is ours.
    drop(unsafe { Arc::from_raw(Arc::as_ptr(item)) });
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_work)]
mod tests {
    use kernel::{
        impl_has_delayed_work,
        impl_has_work,
        new_delayed_work,
        new_work,
        sync::atomic::Relaxed,
        time::msecs_to_jiffies,
        workqueue::DelayedWork, //
    };

    use super::*;
    use crate::kapi::event::Event;

    /// The queue under test.
    static QUEUE: ModuleQueue = ModuleQueue::new();

    /// Counts how often it has run.
    #[pin_data]
    struct Item {
        /// At once.
        #[pin]
        now: Work<Item, 1>,
        /// Later.
        #[pin]
        later: DelayedWork<Item, 2>,
        /// How often.
        runs: Atomic<i32>,
        /// It has run.
        #[pin]
        ran: Event,
    }

    impl_has_work! {
        impl HasWork<Self, 1> for Item { self.now }
    }

    impl_has_delayed_work! {
        impl HasDelayedWork<Self, 2> for Item { self.later }
    }

    impl Item {
        /// One that is not queued.
        fn new() -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    now <- new_work!("smc_kapi_work::now"),
                    later <- new_delayed_work!("smc_kapi_work::later"),
                    runs: Atomic::new(0),
                    ran <- Event::new(),
                }),
                GFP_KERNEL,
            )
        }

        /// Notes a run.
        fn note(&self) {
            self.runs.add(1, Relaxed);
            self.ran.set();
        }
    }

    impl WorkItem<1> for Item {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            this.note();
        }
    }

    impl WorkItem<2> for Item {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            this.note();
        }
    }

    /// Whether nobody else, so not the queue either, refers to the item.
    fn is_last(item: Arc<Item>) -> bool {
        Arc::into_unique_or_drop(item).is_some()
    }

    #[test]
    fn a_queue_is_there_while_it_is_registered() -> Result {
        assert!(QUEUE.get().is_none());
        assert!(!QUEUE.enqueue::<Item, 1>(Item::new()?));
        let queue = QUEUE.register(c"smc_kunit", Kind::Unbound)?;
        assert!(matches!(
            QUEUE.register(c"smc_kunit", Kind::HighPriority),
            Err(e) if e == EBUSY
        ));
        let item = Item::new()?;
        assert!(QUEUE.enqueue::<Item, 1>(item.clone()));
        queue.flush();
        assert_eq!(item.runs.load(Relaxed), 1);
        drop(queue);
        assert!(QUEUE.get().is_none());
        assert!(!QUEUE.enqueue::<Item, 1>(item.clone()));
        assert!(is_last(item));
        Ok(())
    }

    #[test]
    fn the_end_of_a_queue_waits_for_its_items() -> Result {
        let queue = QUEUE.register(c"smc_kunit", Kind::HighPriority)?;
        let item = Item::new()?;
        assert!(QUEUE.enqueue::<Item, 1>(item.clone()));
        drop(queue);
        assert_eq!(item.runs.load(Relaxed), 1);
        assert!(is_last(item));
        Ok(())
    }

    #[test]
    fn a_delayed_item_is_queued_once_and_taken_back_once() -> Result {
        let queue = QUEUE.register(c"smc_kunit", Kind::Unbound)?;
        let item = Item::new()?;
        assert!(!cancel_delayed::<Item, 2>(&item));
        assert!(QUEUE.enqueue_delayed::<Item, 2>(item.clone(), msecs_to_jiffies(600_000)));
        assert!(!QUEUE.enqueue_delayed::<Item, 2>(item.clone(), msecs_to_jiffies(1)));
        assert!(cancel_delayed::<Item, 2>(&item));
        assert!(!cancel_delayed::<Item, 2>(&item));
        assert!(QUEUE.enqueue_delayed::<Item, 2>(item.clone(), msecs_to_jiffies(600_000)));
        assert!(cancel_delayed_sync::<Item, 2>(&item));
        assert!(!cancel_delayed_sync::<Item, 2>(&item));
        assert!(!cancel::<Item, 1>(&item));
        drop(queue);
        assert_eq!(item.runs.load(Relaxed), 0);
        assert!(is_last(item));
        Ok(())
    }

    #[test]
    fn a_delayed_item_runs_in_time() -> Result {
        let queue = QUEUE.register(c"smc_kunit", Kind::Unbound)?;
        let item = Item::new()?;
        assert!(QUEUE.enqueue_delayed::<Item, 2>(item.clone(), msecs_to_jiffies(10)));
        assert!(item.ran.wait_ms(20_000));
        drop(queue);
        assert_eq!(item.runs.load(Relaxed), 1);
        assert!(is_last(item));
        Ok(())
    }
}
