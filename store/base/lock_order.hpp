// The order in which a thread may lock: from the first rank to the last, never back, never two of
// one rank.
//
// ranked_mutex.hpp checks it.  Four parts, by what a mutex may be held over:
//
//     the bucket      slow for as long as a network is: one round of a sync, one hook of an engine
//     the database    files and records of this host, never the bucket
//     nothing slow    tables in memory: held for moments, over others of this part further down
//     nothing         `leaf`: no other mutex is locked while one is held
//
// To add one: find the last mutex that may be held when it is locked, and the first that is locked
// while it is held; its rank lies between.  If there is none, it is a leaf.
#pragma once

#include <cstdint>

namespace weightfs {

enum class LockRank : std::uint8_t {
  // ---- held over the bucket ----
  hook_engine,   // a hook's whole round; only threads of hooks take it
  sync_thread,   // starting and joining the thread of a Sync
  queue_thread,  // likewise of a PublishQueue
  sync_round,    // one round at a time
  images,        // Store::lock_images(): one version at a time is brought into the store
  rest_sources,  // a plan is made, for reads of files that a host does not keep
  repository,    // opening a bucket
  bucket,        // no mutex: a request, for check_lock_order()

  // ---- held over the database and over files ----
  staging_removing,  // unused bytes of staging
  evict,             // one version at a time leaves the store; asks pins, hooks and catalogs
  sync_directory,    // the directory of `weightfs sync`; asks for the catalog
  bind_link,         // whether there is a bind mode
  bound_work,        // mount(2) and its kin, which wait for the session's threads
  sync_catalog,      // a catalog is made and shown
  catalog_builder,
  partial_stop,  // joining the threads that fill a version
  queue_record,  // records of hand-overs
  queue_early,   // which files were given to early work
  staging_changes,
  history_accept,  // a version is compared with its neighbours
  history_layouts,
  hand_pins_change,
  store_newest,
  database,  // Db's handle

  // ---- held over nothing slow ----
  sync,
  partial_errors,  // told in their order
  partial_images,
  partial_version,
  pack_spool,
  delta_files,
  queue,
  staging,
  early_work,
  close_watch,
  history,
  store,
  eviction,
  hand_pins,
  bound_sets,
  warmer,
  hooks,
  hook_reconciler,
  first_pass,  // the wait for one
  pins_opens,  // taking what was opened
  passes,
  link_passes,
  walks,
  session_link,  // whether there is a session
  control_link,  // whether there is a server of control sockets
  control_server,
  read_waker,
  requests,
  open_table,  // the kernel's registration of a backing file runs under it

  // ---- held over nothing ----
  leaf,
};

}  // namespace weightfs
