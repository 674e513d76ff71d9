// Package fence is the resource's side of a fenced lock: it refuses a write whose
// token is older than the newest that the resource has seen, in the same atomic
// step as the write. Only this stops a holder that stood still for longer than
// its lease and then goes on as if nothing had happened.
//
// Take the lock with [holdfast.Options.Fencing] and send [holdfast.Lease.Token]
// along with every write that the lock guards. Several writes of one hold carry
// one token and all pass. 0, the token of a lock without fencing, never passes.
//
// # Redis
//
// [Set] guards one string key. [NewScript] guards a script of your own. The
// newest token is kept in a key beside the resource, [Key], without a TTL: it has
// to live as long as the resource does.
//
// A write that was refused is to be tried again under a new hold of the lock. The
// verdict of the write counts, not that of the release: a write that passed has
// passed, even if the lock was lost a moment later.
//
//	for {
//		_, lease, err := lock.Lock(ctx)
//		if err != nil {
//			return err
//		}
//		err = fence.Set(ctx, client, "balance:42", lease.Token(), next)
//		lease.Unlock(ctx)
//		if !errors.Is(err, fence.ErrStaleToken) {
//			return err
//		}
//	}
//
// # SQL
//
// The row itself keeps the newest token, and the update compares it:
//
//	ALTER TABLE accounts ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
//
//	UPDATE accounts
//	   SET balance = $3, fence = $2
//	 WHERE id = $1
//	   AND $2 > 0
//	   AND fence <= $2;
//
// If it changes no row although the row exists, the token is stale: stop, and
// tell the caller that the lock was lost. In one transaction the first guarded
// update decides for all. Tokens stay below 2^53, so BIGINT holds them. An INSERT
// is guarded by a row that exists before, such as the account that an entry
// belongs to.
//
// # Everything else
//
// A service can do the same with a token in a header: keep the newest token for
// each resource in its own store, and compare and write in one step there. A check
// that comes before the write, as a step of its own, guards nothing.
package fence
