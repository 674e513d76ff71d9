// Package rwlock is the read-write lock: many readers at once, or one writer. It is
// Redisson's RReadWriteLock: Go and Java processes that use one name exclude and wake
// each other.
//
//	prices, err := rwlock.New(hf, "prices", rwlock.Options{})
//	err = prices.For("eu").Reader().Do(ctx, quote)
//	err = prices.For("eu").Writer().Do(ctx, reload)
//
// # When to take it
//
// When reads are many, take a while, and must not see half of a write. A read costs two
// commands, as a lock of package reentrant does; so where sections are short, or most of
// them write, reentrant is cheaper and hands over between goroutines without asking
// Redis. Where readers may see a value that is a little old, no lock is cheaper still.
//
// # What it promises
//
// That nobody writes while others read or write, as package holdfast states mutual
// exclusion; re-entrance through the context, on both sides; a write lease that becomes
// a read lease in one step ([Writer.Downgrade]). A reader cannot become a writer:
// [ErrUpgrade], at once.
//
// Writers do not starve: while one waits, new readers stand back, nested ones excepted,
// so it gets in when those have left that read already. Readers do not starve: those
// that wait when a writer leaves enter before the next one, together. A writer that dies
// while it waits holds readers up for three seconds at most, a reader that does so the
// next writer for one. A reader that dies while it reads holds writers up until its own
// lease ends, however long others read. Java processes do not know of those who wait:
// their readers do not stand back, and their writers let nobody go first.
//
// Where Java reads too, leases of readers must not be longer than its
// lockWatchdogTimeout: its renewal cuts the lock's time to live to that, and a writer
// could come in beside a longer one. docs/redisson.md says what else a mixed fleet must
// set.
//
// Between writers of several processes there is no order and no bound.
//
// # What is in Redis
//
//   - N, the lock's name: a hash with mode = read or write, a field with value 1 for each
//     reader, and for a writer the field owner:write with its number of holds. It always
//     has a TTL.
//   - {N}:owner:rwlock_timeout:1: one key for each reader, which lives as long as its
//     lease. Readers of one process that entered together are one owner.
//   - redisson_rwlock:{N}: the channel of release messages; 0 from readers, 1 from
//     writers.
//   - redisson_lock_token:{N}: with Fencing, the last token minted, as of package
//     reentrant.
//   - holdfast_rwlock_writers:{N}, holdfast_rwlock_readers:{N}, holdfast_rwlock_turn:{N}:
//     who waits, and which readers have their turn; for seconds, and nobody's business
//     but Go's.
//
// [holdfast.SessionOptions.Receipts] is not used.
package rwlock
