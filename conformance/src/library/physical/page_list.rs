//! Pages that return to a list.

use crate::case::cases;
use crate::library::tools::{has, idle, refused, write};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Backend, BackingStore, Bytes, Detail, POISON, PageList, PageListStats, Region};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "physical":
    /// Pages return to their list when their last clone is dropped and their last mapping is gone, and are taken again before new
    /// ones are created.
    pages_return_to_their_list,
    /// A suspension with a list of its own returns the pages that only the region has, and a resume takes pages again.
    an_evicted_region_returns_its_pages,
    /// Pages beyond the budget are refused; a smaller budget releases free pages at once, and pages in use when they return.
    a_budget_limits_pages,
    /// If a page cannot be created, those created before it are free, and the list can be used as before.
    a_page_that_cannot_be_created,
    /// Pages that another process may have do not return to the list, and no longer count.
    exported_pages_leave_their_list,
    /// Pages of a guarded region are overwritten when they return.
    pages_of_a_guarded_region_are_overwritten,
    /// Pages that a destructor had to keep because a stream captures return when the list has no other.
    pages_kept_during_a_capture,
    /// Eight threads take and drop pages of one list: it never holds more than its budget, and no two threads have one page.
    pages_are_taken_by_many_threads,
}

fn list<B: TestKit>(subject: &Subject<B>, backend: &B, budget: u64) -> PageList<B> {
    let (page, budget) = (subject.granularity(), subject.granules(budget));
    PageList::new(backend, page, subject.properties(), budget).unwrap()
}

/// The numbers of all pages and of the free ones.
fn counts<B: TestKit>(subject: &Subject<B>, list: &PageList<impl Backend>) -> (u64, u64) {
    let PageListStats { held, free, .. } = list.stats();
    (held / subject.granularity(), free / subject.granularity())
}

fn pages_return_to_their_list<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    let list = list(subject, &subject.backend, 8);
    assert_eq!((subject.free_here(), list.page_size()), (before, subject.granularity()));
    let pages = list.take(subject.granules(2) + Bytes(1)).unwrap();
    assert_eq!((pages.len(), counts(subject, &list)), (3, (3, 0)));
    assert!(pages.iter().all(|page| page.size() == subject.granularity()));
    assert!(pages.iter().all(|page| page.properties() == list.properties()));
    assert!(list.take(Bytes::ZERO).unwrap().is_empty());

    let (mut one, mut other) = (subject.space(3).build().unwrap(), subject.space(3).build().unwrap());
    one.grow_with(&pages).unwrap();
    other.grow_with(&pages[..1]).unwrap();
    write(subject, &mut one, 1);
    let clone = pages[1].clone();
    drop(pages);
    assert_eq!(counts(subject, &list), (3, 0));
    drop(one);
    assert_eq!(counts(subject, &list), (3, 1), "one page is mapped in another region, and one has a clone");
    drop(clone);
    other.unmap(Bytes(0), subject.granularity(), idle()).unwrap();
    assert_eq!(counts(subject, &list), (3, 3));
    assert_eq!(subject.free_here(), before - subject.granules(3), "the list keeps its pages");
    drop(other); // some versions of HIP keep memory with the addresses at which it was mapped

    let pages = list.clone().take(subject.granules(4)).unwrap();
    assert_eq!((pages.len(), counts(subject, &list)), (4, (4, 0)));
    drop(list);
    assert_eq!(subject.free_here(), before - subject.granules(4));
    drop(pages);
    assert_eq!(subject.free_here(), before, "pages return to the device if the list is gone");
}

fn an_evicted_region_returns_its_pages<B: TestKit>(subject: &Subject<B>) {
    let list = list(subject, &subject.backend, 8);
    let prefix = list.take(subject.granularity()).unwrap();
    let mut region = subject.space(4).build().unwrap();
    region.grow_with(&prefix).unwrap();
    region.grow_with(&list.take(subject.granules(3)).unwrap()).unwrap();
    write(subject, &mut region, 2);
    let store = BackingStore::pinned(&subject.backend, subject.granules(4)).unwrap();
    let evicted = region.suspend_into(&store, idle(), &mut Vec::new()).unwrap();
    assert_eq!((evicted.memory, evicted.shared), (subject.granules(3), subject.granularity()));
    assert_eq!(counts(subject, &list), (4, 3));
    let used = list.take(subject.granules(2)).unwrap();
    used.iter().for_each(|page| page.write(Bytes(0), &[0x55; 64]).unwrap());
    region.resume_from(&mut list.take(evicted.memory).unwrap()).unwrap();
    assert_eq!(counts(subject, &list), (6, 0));
    assert!(has(subject, &region, 2));
}

fn a_budget_limits_pages<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    let page = subject.granularity();
    let list = PageList::new(&subject.backend, page, subject.properties(), page * 5 - Bytes(1)).unwrap();
    assert_eq!(list.stats().budget, page * 4, "the budget has whole pages");
    let mut used = list.take(page * 3).unwrap();
    let (requested, held) = (page * 2, page * 3);
    refused!(@CreateMemory list.take(requested), Detail::BudgetExhausted { .. }, requested, held, page * 4);
    assert!(list.take(page * 2).unwrap_err().is_out_of_memory());
    refused!(@CreateMemory list.take(Bytes(u64::MAX)), Detail::BudgetExhausted { .. });
    assert_eq!(counts(subject, &list), (3, 0), "a refusal takes nothing");
    used.push(list.take(page).unwrap().remove(0));
    used.truncate(2);
    let error = list.take(page * 2 + Bytes(1)).unwrap_err();
    let Detail::BudgetExhausted { requested, held, free, budget } = error.detail() else {
        panic!("{error:?}")
    };
    assert_eq!((*requested, *held, *free, *budget), (page * 3, page * 4, page * 2, page * 4));
    assert_eq!(list.take(page * 2).unwrap().len(), 2, "a request may use all of the budget");

    list.set_budget(page * 3 + Bytes(1)).unwrap();
    assert_eq!((counts(subject, &list), list.stats().budget), ((3, 1), page * 3));
    assert_eq!(subject.free_here(), before - page * 3);
    list.set_budget(page).unwrap();
    assert_eq!(counts(subject, &list), (2, 0));
    refused!(list.take(page), Detail::BudgetExhausted { .. }, page, page * 2);
    used.pop();
    assert_eq!((counts(subject, &list), subject.free_here()), ((1, 0), before - page));
    used.pop();
    assert_eq!((counts(subject, &list), subject.free_here()), ((1, 1), before - page));
    list.set_budget(Bytes::ZERO).unwrap();
    assert_eq!((counts(subject, &list), subject.free_here()), ((0, 0), before));
    list.set_budget(page * 2).unwrap();
    assert_eq!(list.take(page * 2).unwrap().len(), 2, "a larger budget allows pages again");
}

fn a_page_that_cannot_be_created<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let page = subject.granularity();
    let list = PageList::new(&backend, page, subject.properties(), page * 4).unwrap();
    drop(list.take(page).unwrap());
    // One free page, one that is created, and two that are not.
    backend.fail(1, 1);
    let error = list.take(page * 4).unwrap_err();
    assert_eq!(backend.stop(), 2);
    assert!(error.driver_error().is_some(), "{error}");
    assert_eq!((counts(subject, &list), backend.live().handles), ((2, 2), 2));
    assert_eq!(list.take(page * 4).unwrap().len(), 4, "what was not created does not count");
}

fn exported_pages_leave_their_list<B: TestKit>(subject: &Subject<B>) {
    let (before, page) = (subject.free_here(), subject.granularity());
    let list = or_skip(PageList::new(&subject.backend, page, subject.properties().shareable(), page * 2));
    let pages = or_skip(list.take(page * 2));
    assert_eq!(pages[0].properties(), list.properties());
    assert!(list.properties().is_shareable());
    let descriptor = or_skip(pages[0].export());
    drop(pages);
    assert_eq!(counts(subject, &list), (1, 1));
    drop(descriptor);
    assert_eq!(subject.free_here(), before - page);
    assert_eq!(list.take(page * 2).unwrap().len(), 2);
}

fn pages_of_a_guarded_region_are_overwritten<B: TestKit>(subject: &Subject<B>) {
    let (list, page) = (list(subject, &subject.backend, 1), subject.granularity());
    let mut region = subject.space(1).guarded().build().unwrap();
    region.grow_with(&list.take(page).unwrap()).unwrap();
    region.write(Bytes(0), b"secret").unwrap();
    drop(region);
    let mut found = [0; 6];
    list.take(page).unwrap()[0].read(Bytes(0), &mut found).unwrap();
    assert_eq!(found, [POISON; 6]);
}

fn pages_kept_during_a_capture<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let page = subject.granularity();
    let list = PageList::new(&backend, page, subject.properties(), page).unwrap();
    let mut region = Region::builder(&backend).on(subject.device).reserve(page).build().unwrap();
    region.grow_with(&list.take(page).unwrap()).unwrap();
    backend.capture_on(subject.device, true);
    drop(region);
    assert_eq!(counts(subject, &list), (1, 0), "work of the capture may use the page");
    assert!(matches!(list.take(page).unwrap_err().detail(), Detail::BudgetExhausted { .. }));
    backend.capture_on(subject.device, false);
    assert_eq!(list.take(page).unwrap().len(), 1);
    assert_eq!(counts(subject, &list), (1, 1));
    // The error of the wait during the capture concerns the dropped memory.
    backend.drop_log().take_last();
}

fn pages_are_taken_by_many_threads<B: TestKit>(subject: &Subject<B>) {
    const THREADS: u64 = 8;
    let (before, page) = (subject.free_here(), subject.granularity());
    let list = list(subject, &subject.backend, 2 * THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let list = &list;
            scope.spawn(move || {
                for round in 0..50 {
                    let pages = list.take(page * (1 + (thread + round) % 2)).unwrap();
                    let mark = (thread << 32 | round).to_le_bytes();
                    pages.iter().for_each(|page| page.write(Bytes(0), &mark).unwrap());
                    std::thread::yield_now();
                    for page in &pages {
                        let mut found = [0; 8];
                        page.read(Bytes(0), &mut found).unwrap();
                        assert_eq!(found, mark, "another thread has the page too");
                    }
                }
            });
        }
    });
    let (held, free) = counts(subject, &list);
    assert!(held == free && held <= 2 * THREADS, "{held} pages, {free} of them free");
    drop(list);
    assert_eq!(subject.free_here(), before);
}
