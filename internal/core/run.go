package core

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/pubsub"
	"github.com/holdfast-go/holdfast/scripts"
)

// Verdict reads the reply 1, 0 or -1 of a script that acts for an owner.
func Verdict(reply rueidis.RedisMessage, err error) (lease.Verdict, error) {
	n, err := number(reply, err)
	if err != nil {
		return verdictOf(Fail(err))
	}
	return verdict(n), nil
}

// Farewell reads the reply of a release script: 1 and how many were told, 0, or
// -1.
func (e *Env) Farewell(publish string, reply rueidis.RedisMessage, err error) (lease.Farewell, error) {
	f := lease.Farewell{Heard: -1}
	n, err := number(reply, err)
	if err != nil {
		f.Verdict, err = verdictOf(Fail(err))
		return f, err
	}
	if n < 1 {
		f.Verdict = verdict(n)
		return f, nil
	}
	// The nodes of a cluster hear of each other's plain messages after the script.
	if publish == spublish || publish == plain && e.Client.Mode() != rueidis.ClientModeCluster {
		f.Heard = int(n - 1)
	}
	return f, nil
}

func verdict(n int64) lease.Verdict {
	switch n {
	case 1:
		return lease.Mine
	case 0:
		return lease.Gone
	default:
		return lease.Other
	}
}

func number(reply rueidis.RedisMessage, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return reply.AsInt64()
}

// verdictOf turns the news that the key holds other data into a verdict: then
// the owner does not have it.
func verdictOf(err error) (lease.Verdict, error) {
	if isWrongType(err) {
		return lease.Other, nil
	}
	return lease.Gone, err
}

// Millis is d in whole milliseconds, rounded up, as scripts want it.
func Millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// Acknowledged runs take on a connection of its own and has WAIT follow on that
// same connection if the lock was granted: sent over another one, WAIT would
// always look acknowledged. With too few acknowledgements it calls undo and
// returns a failure.
func (e *Env) Acknowledged(ctx context.Context, s *Settings, take func(rueidis.CoreClient) (lease.Grant, error), undo func() error) (grant lease.Grant, err error) {
	acks := int64(0)
	err = e.Client.Dedicated(func(c rueidis.DedicatedClient) error {
		var err error
		if grant, err = take(c); err != nil || !grant.Taken {
			return err
		}
		acks, err = c.Do(ctx, c.B().Wait().Numreplicas(int64(s.Replicas)).Timeout(s.ReplicaTimeout.Milliseconds()).Build()).AsInt64()
		return err
	})
	if err != nil {
		if !grant.Taken {
			return grant, Fail(err)
		}
		acks = 0
	}
	if !grant.Taken || acks >= int64(s.Replicas) {
		return grant, nil
	}
	class := fault.NotExecuted
	if undo() != nil {
		class = fault.Unknown
	}
	few := fmt.Errorf("acknowledged by %d of %d replicas within %v", acks, s.Replicas, s.ReplicaTimeout)
	if err != nil {
		few = fmt.Errorf("%w: %w", few, err)
	}
	return lease.Grant{}, &fault.Failure{Class: class, Spent: true, Err: few}
}

// The words by which release scripts know the family to send with.
const (
	plain    = "PUBLISH"
	spublish = "SPUBLISH"
	both     = "BOTH"
)

// PublishWith is the word by which release scripts know the family to send with.
func (e *Env) PublishWith(ctx context.Context) string {
	switch e.Hub.Publisher(ctx) {
	case pubsub.Sharded:
		return spublish
	case pubsub.Both:
		return both
	default:
		return plain
	}
}

// Subscribe listens to channel.
func (e *Env) Subscribe(channel string, l lease.Listener) (stop func()) {
	return e.Hub.Subscribe(channel, func(s pubsub.Signal) { l.Notify(signal(s)) })
}

// Listening reports whether the session listens to anything: usually not, and it
// is asked on everyone's way to a free lock.
func (e *Env) Listening() bool { return e.Hub.Len() > 0 }

// Join listens to channel if that costs no command.
func (e *Env) Join(channel string, l lease.Listener) (stop func(), ok bool) {
	return e.Hub.Join(channel, func(s pubsub.Signal) { l.Notify(signal(s)) })
}

func signal(s pubsub.Signal) lease.Signal {
	if s == pubsub.Message {
		return lease.Message
	}
	return lease.Look
}

// LongestSleep bounds a wait: a sharded channel may move to another node without
// a word.
func (e *Env) LongestSleep() time.Duration {
	if e.Hub.Sharded() {
		return 5 * time.Second
	}
	return 0
}

// A Renewer renews locks with a script that takes all keys, then all owners, then
// all leases, and returns a verdict for each.
type Renewer struct {
	env     *Env
	script  *scripts.Script
	cluster bool
	second  func(lease.Renewal) string // the other key of a lock that has two; else nil
	split   func(context.Context, lease.Renewal) lease.Outcome
}

// NewRenewer returns a renewer that uses script.
func NewRenewer(env *Env, script *scripts.Script) *Renewer {
	return &Renewer{env: env, script: script, cluster: env.Client.Mode() == rueidis.ClientModeCluster}
}

// NewPairRenewer returns a renewer for locks that have two keys each, of which second
// says the other one. While their slot moves the script is refused, and split is to
// renew a lock with scripts of one key.
func NewPairRenewer(env *Env, script *scripts.Script, second func(lease.Renewal) string,
	split func(context.Context, lease.Renewal) lease.Outcome,
) *Renewer {
	r := NewRenewer(env, script)
	r.second, r.split = second, split
	return r
}

// Renew sends one script for each batch of locks, all in one pipeline; in a cluster,
// where they lie in different slots, one for each lock, in one pipeline to each node.
func (r *Renewer) Renew(ctx context.Context, locks []lease.Renewal) []lease.Outcome {
	out := make([]lease.Outcome, len(locks))
	size := len(locks)
	switch {
	case r.cluster:
		size = 1
	case r.env.RenewBatch > 0:
		size = min(size, r.env.RenewBatch)
	}
	if size == len(locks) {
		r.batch(ctx, locks, out)
		return out
	}
	calls := make([]scripts.Call, 0, (len(locks)+size-1)/size)
	for part := range slices.Chunk(locks, size) {
		calls = append(calls, r.call(part))
	}
	for i, result := range r.script.ExecMulti(ctx, r.env.Client, calls) {
		from := i * size
		to := min(from+size, len(locks))
		r.conclude(ctx, result, locks[from:to], out[from:to])
	}
	return out
}

// batch renews locks by one script.
func (r *Renewer) batch(ctx context.Context, locks []lease.Renewal, out []lease.Outcome) {
	c := r.call(locks)
	r.conclude(ctx, r.script.Exec(ctx, r.env.Client, c.Keys, c.Args), locks, out)
}

// conclude puts what one script has answered into out. A batch that is refused as a
// whole, for one key that the user may not touch or behind a proxy of a cluster, is
// split, down to single keys: a bad key must not cost its neighbours their leases.
func (r *Renewer) conclude(ctx context.Context, result rueidis.RedisResult, locks []lease.Renewal, out []lease.Outcome) {
	err := read(result, out)
	if len(locks) == 1 && r.split != nil && Moving(err) && ctx.Err() == nil {
		out[0] = r.split(ctx, locks[0])
		return
	}
	if err == nil || len(locks) == 1 || !refused(err) || ctx.Err() != nil {
		return
	}
	half := len(locks) / 2
	r.batch(ctx, locks[:half], out[:half])
	r.batch(ctx, locks[half:], out[half:])
}

func (r *Renewer) call(locks []lease.Renewal) scripts.Call {
	n := len(locks)
	if r.second != nil {
		c := scripts.Call{Keys: make([]string, 0, 2*n), Args: make([]string, 2*n)}
		for i, l := range locks {
			c.Keys = append(c.Keys, l.Key, r.second(l))
			c.Args[i], c.Args[n+i] = l.Owner, Millis(l.Lease)
		}
		return c
	}
	words := make([]string, 3*n)
	keys, owners, leases := words[:n:n], words[n:2*n], words[2*n:]
	for i, l := range locks {
		keys[i], owners[i] = l.Key, l.Owner
		if i > 0 && l.Lease == locks[i-1].Lease { // as a rule
			leases[i] = leases[i-1]
		} else {
			leases[i] = Millis(l.Lease)
		}
	}
	return scripts.Call{Keys: keys, Args: words[n:]}
}

// read puts the verdicts of one script into out; if it failed as a whole that
// error is everyone's, and returned.
func read(result rueidis.RedisResult, out []lease.Outcome) error {
	verdicts, err := result.ToArray()
	if err == nil && len(verdicts) != len(out) {
		err = fmt.Errorf("%d verdicts for %d locks", len(verdicts), len(out))
	}
	if err != nil {
		failure := Fail(err)
		for i := range out {
			out[i].Verdict, out[i].Err = verdictOf(failure)
		}
		return failure
	}
	for i := range verdicts {
		if n, err := verdicts[i].AsInt64(); err == nil && verdicts[i].IsInt64() {
			out[i] = lease.Outcome{Verdict: verdict(n)}
			continue
		}
		text, err := verdicts[i].ToString()
		if err != nil {
			text = err.Error()
		}
		out[i].Verdict, out[i].Err = verdictOf(failReply(text, fmt.Errorf("%s", text)))
	}
	return nil
}
