// Package segmented splits one hot lock over many: a striped lock has a fixed
// number of segments, each a re-entrant lock of its own, and every key belongs to
// one of them. Work on different keys goes on side by side, with a bounded number
// of locks however many keys there are, and all of them can be taken at once.
//
//	accounts, err := segmented.New(hf, "accounts", segmented.Options{})
//	err = accounts.For("4711").Do(ctx, withdraw)
//
//	ctx, lease, err := accounts.LockKeys(ctx, "4711", "4712") // both, without a deadlock
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// # What it promises
//
// What package reentrant promises, for each segment. Keys spread evenly over
// segments by [Hash], which never changes; segments spread over the slots of a
// cluster. The number of segments is recorded in Redis at first use, and a process
// that comes with another number is refused: in a rolling deploy from 100 to 128
// one key would have two locks. To change the number, stop all users of the lock
// and delete the record.
//
// # What it does not promise
//
// Two keys that share a segment exclude each other, for no reason that their users
// can see. Where that matters, and there are not too many keys, give each its own
// lock with reentrant's For. And a lock is no stock: to count units, let Redis do
// it in one step.
//
// # What is in Redis
//
//   - N:segment:I: the lock of segment I, with the channel and keys of package
//     reentrant.
//   - holdfast_segments:{N}: the number of segments, a string without a TTL.
package segmented
