package rwlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	readerName = "rwlock.Reader"
	writerName = "rwlock.Writer"

	// wordLife is how long a writer's word that it waits is good for, and heartbeat how
	// often it gives it: that long a writer that died holds readers up.
	wordLife  = 3 * time.Second
	heartbeat = time.Second

	// turn is how long the readers that waited for a writer have to come in before the
	// next writer: that long one that died holds a writer up, once.
	turn = time.Second

	// mostKeys bounds the keys of one prune, and mostHolds the holds of a reader that is
	// judged: what a Java thread may have of nested holds.
	mostKeys  = 256
	mostHolds = 1000

	// mostRounds bounds how often one attempt of a writer takes dead readers out.
	mostRounds = 100
)

// readKind and writeKind are the two sides, each a lock kind.
type (
	readKind  struct{ readersFirst bool }
	writeKind struct{ readersFirst bool }
)

var (
	_ core.Kind     = readKind{}
	_ core.Kind     = writeKind{}
	_ core.Yielding = writeKind{}
)

func (readKind) Name() string    { return readerName }
func (readKind) Uses() core.Uses { return core.Shared }

func (readKind) Renewer(env *core.Env) lease.Renewer {
	return core.NewPairRenewer(env, scripts.RwlockReadRenew,
		func(l lease.Renewal) string { return holdKey(l.Key, l.Owner, 1) },
		func(ctx context.Context, l lease.Renewal) lease.Outcome { return renewApart(ctx, env, l) })
}

func (k readKind) Open(env *core.Env, key string, s *core.Settings) core.Lock {
	return &readers{side: side{env: env, key: key, settings: s}, readersFirst: k.readersFirst}
}

func (writeKind) Name() string     { return writerName }
func (writeKind) Uses() core.Uses  { return core.UsesExclusive }
func (writeKind) YieldsTo() string { return readerName }

func (writeKind) Renewer(env *core.Env) lease.Renewer {
	return core.NewRenewer(env, scripts.ReentrantRenew)
}

func (k writeKind) Open(env *core.Env, key string, s *core.Settings) core.Lock {
	return &writers{side: side{env: env, key: key, settings: s}, readersFirst: k.readersFirst}
}

// side is what both sides ask of Redis in the same way.
type side struct {
	env      *core.Env
	key      string
	settings *core.Settings
}

// The keys beside the lock itself. Redisson knows the channel and the keys of holds.

func (s *side) channel() string { return core.Prefixed("redisson_rwlock", s.key) }
func (s *side) waiting() string { return core.Prefixed("holdfast_rwlock_writers", s.key) }
func (s *side) readers() string { return core.Prefixed("holdfast_rwlock_readers", s.key) }
func (s *side) turn() string    { return core.Prefixed("holdfast_rwlock_turn", s.key) }

// holdKey is the key of an owner's n-th read hold.
func holdKey(key, owner string, n int) string {
	return core.Suffixed(key, owner+":rwlock_timeout:"+strconv.Itoa(n))
}

// field is where an owner's write holds are counted.
func field(owner string) string { return owner + writeSuffix }

const writeSuffix = ":write"

// Receipts: a release that was sent again and finds nothing counts as done.
func (s *side) Receipts() bool { return false }

func (s *side) Renewer() lease.Renewer { return s.settings.Renewer }

func (s *side) Subscribe(l lease.Listener) (stop func()) { return s.env.Subscribe(s.channel(), l) }

func (s *side) Listening() bool { return s.env.Listening() }

func (s *side) Join(l lease.Listener) (stop func(), ok bool) { return s.env.Join(s.channel(), l) }

// farewell reads the reply of a release; how many heard of it, it does not say.
func farewell(r rueidis.RedisResult) (lease.Farewell, error) {
	v, err := core.Verdict(r.ToMessage())
	return lease.Farewell{Verdict: v, Heard: -1}, err
}

func (s *side) LongestSleep() time.Duration { return s.env.LongestSleep() }

func (s *side) Info(ctx context.Context) (core.Info, error) {
	reply, err := scripts.RwlockInfo.Exec(ctx, s.env.Client, []string{s.key}, nil).ToArray()
	if err != nil {
		return core.Info{}, core.Fail(err)
	}
	left, err := reply[0].AsInt64()
	if err != nil {
		return core.Info{}, core.Fail(err)
	}
	if left == -2 {
		return core.Info{Mode: "free"}, nil
	}
	info := core.Info{Left: time.Duration(left) * time.Millisecond}
	if info.Mode, err = reply[1].ToString(); err != nil {
		return core.Info{}, core.Fail(err)
	}
	for i := 2; i+1 < len(reply); i += 2 {
		owner, err := reply[i].ToString()
		if err != nil {
			return core.Info{}, core.Fail(err)
		}
		holds, _ := reply[i+1].AsInt64() // other data in the hash counts 0 holds
		info.Holders = append(info.Holders, core.Holder{Owner: strings.TrimSuffix(owner, writeSuffix), Holds: int(holds)})
	}
	return info, nil
}

// force removes the lock if it is in that mode.
func (s *side) force(ctx context.Context, mode, message string) (bool, error) {
	n, err := scripts.RwlockForce.Exec(ctx, s.env.Client,
		[]string{s.key}, []string{mode, s.channel(), s.env.PublishWith(ctx), message}).AsInt64()
	return n == 1, core.Fail(err)
}

// ms is d as scripts want it.
func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// readers is the read side of one lock.
type readers struct {
	side
	readersFirst bool
	under        string // the field of the writer whose readers these are; or empty
}

var (
	_ core.Part    = (*readers)(nil)
	_ lease.Queuer = (*readers)(nil)
)

// Under returns the read side as the writer sees it that has the lock.
func (s *readers) Under(owner string) core.Lock {
	inner := *s
	inner.under = field(owner)
	return &inner
}

func (s *readers) Take(ctx context.Context, owner string, _ int) (lease.Grant, error) {
	return s.acknowledged(ctx, owner, "0", "1") // the turn is for those that wait
}

func (s *readers) TakeOrWait(ctx context.Context, owner string, _, behind int) (lease.Grant, error) {
	more := "0"
	if behind > 0 {
		more = "1"
	}
	return s.acknowledged(ctx, owner, "1", more)
}

func (s *readers) acknowledged(ctx context.Context, owner, waits, more string) (lease.Grant, error) {
	if s.settings.Replicas > 0 {
		return s.env.Acknowledged(ctx, s.settings,
			func(c rueidis.CoreClient) (lease.Grant, error) { return s.take(ctx, c, owner, waits, more) },
			func() error { _, err := s.Release(ctx, owner, 0); return err })
	}
	return s.take(ctx, s.env.Client, owner, waits, more)
}

func (s *readers) take(ctx context.Context, c rueidis.CoreClient, owner, waits, more string) (lease.Grant, error) {
	back := "1"
	if s.readersFirst {
		back = "0"
	}
	left, err := scripts.RwlockReadAcquire.Exec(ctx, c,
		[]string{s.key, holdKey(s.key, owner, 1), s.waiting(), s.readers(), s.turn()},
		[]string{owner, s.settings.Lease, s.under, s.env.Session, waits, back, more}).AsInt64()
	switch {
	case err != nil:
		return lease.Grant{}, core.Fail(err)
	case left == -2:
		return lease.Grant{Taken: true}, nil
	case left == -3:
		return lease.Grant{}, &fault.Failure{Class: fault.Fatal, Err: core.ErrOuterLost}
	default:
		return lease.Grant{Left: time.Duration(left) * time.Millisecond}, nil
	}
}

func (s *readers) Withdraw(ctx context.Context) error {
	return core.Fail(scripts.RwlockReadWithdraw.Exec(ctx, s.env.Client,
		[]string{s.readers(), s.turn()}, []string{s.env.Session, s.channel(), s.env.PublishWith(ctx)}).Error())
}

// Count is not called: an owner has one hold, and nested ones are its holder's alone.
func (s *readers) Count(context.Context, string, int) (lease.Verdict, error) { return lease.Mine, nil }

func (s *readers) Release(ctx context.Context, owner string, _ time.Duration) (lease.Farewell, error) {
	args := []string{owner, s.channel(), s.env.PublishWith(ctx)}
	hold := holdKey(s.key, owner, 1)
	r := scripts.RwlockReadRelease.Exec(ctx, s.env.Client, []string{s.key, hold, s.waiting()}, args)
	if core.Moving(r.Error()) {
		// One key each, in this order: a key without a field is nobody's hold, while a
		// field without its key might be taken for a dead reader's.
		r = scripts.RwlockReadRelease.Exec(ctx, s.env.Client, []string{s.key}, args)
		if r.Error() == nil {
			_ = s.env.Client.Do(ctx, s.env.Client.B().Del().Key(hold).Build()).Error() // or it ends with its lease
		}
	}
	if left, err := r.ToArray(); err == nil {
		s.tidy(owner, candidatesOf(left[1:]))
		return lease.Farewell{Verdict: lease.Mine, Heard: -1}, nil
	}
	return farewell(r)
}

// tidy looks in the background whether those are alive that owner left behind. While
// one of them is of this session there is no need: it will leave too, or is taken out
// after its loss.
func (s *readers) tidy(owner string, left []candidate) {
	session := owner[:strings.LastIndexByte(owner, ':')+1]
	for _, c := range left {
		if strings.HasPrefix(c.owner, session) {
			return
		}
	}
	if len(left) > 0 {
		s.env.Background(func(ctx context.Context) { _, _, _ = s.prune(ctx, left) })
	}
}

func (s *readers) Renewal(owner string, d time.Duration) lease.Renewal {
	return lease.Renewal{Key: s.key, Owner: owner, Lease: d}
}

// renewApart renews a hold whose two keys lie on two nodes, since their slot moves: the
// key of the hold first, so that the lock never ends before it.
func renewApart(ctx context.Context, env *core.Env, l lease.Renewal) lease.Outcome {
	d := core.Millis(l.Lease)
	v, err := core.Verdict(scripts.RwlockHoldRenew.Exec(ctx, env.Client, []string{holdKey(l.Key, l.Owner, 1)}, []string{d}).ToMessage())
	if err != nil || v != lease.Mine {
		return lease.Outcome{Verdict: v, Err: err}
	}
	return core.NewRenewer(env, scripts.ReentrantRenew).Renew(ctx, []lease.Renewal{l})[0]
}

func (s *readers) Force(ctx context.Context) (bool, error) { return s.force(ctx, "read", "0") }

// A candidate is a reader that may be dead.
type candidate struct {
	owner string
	holds int
}

// candidatesOf are those of owner, holds, … that can be judged. Their keys are bounded.
func candidatesOf(pairs []rueidis.RedisMessage) (all []candidate) {
	keys := 0
	all = []candidate{}
	for i := 0; i+1 < len(pairs); i += 2 {
		owner, err := pairs[i].ToString()
		holds, err2 := pairs[i+1].AsInt64()
		if err != nil || err2 != nil || holds < 1 || holds > mostHolds || keys > 0 && keys+int(holds) > mostKeys {
			continue
		}
		keys += int(holds)
		all = append(all, candidate{owner, int(holds)})
	}
	return all
}

// nobody is the soonest end where nobody has the lock.
const nobody = -2 * time.Millisecond

// prune takes those of the candidates out that are dead, gone of them. soonest is when
// the first of the others may end, nobody, or also negative if that is not known.
func (s *side) prune(ctx context.Context, all []candidate) (gone int64, soonest time.Duration, err error) {
	keys, args := []string{s.key}, []string{s.channel(), s.env.PublishWith(ctx)}
	for _, c := range all {
		for n := range c.holds {
			keys = append(keys, holdKey(s.key, c.owner, n+1))
		}
		args = append(args, c.owner, strconv.Itoa(c.holds))
	}
	reply, err := scripts.RwlockPrune.Exec(ctx, s.env.Client, keys, args).AsIntSlice()
	if err != nil {
		return 0, -1, core.Fail(err)
	}
	if len(reply) != 2 {
		return 0, -1, fmt.Errorf("%d numbers in the reply to a prune", len(reply))
	}
	return reply[0], time.Duration(reply[1]) * time.Millisecond, nil
}

// writers is the write side of one lock.
type writers struct {
	side
	readersFirst bool
}

var (
	_ core.Lock       = (*writers)(nil)
	_ lease.Queuer    = (*writers)(nil)
	_ lease.Converter = (*writers)(nil)
)

func (s *writers) Take(ctx context.Context, owner string, block int) (lease.Grant, error) {
	return s.acknowledged(ctx, owner, block, 0)
}

func (s *writers) TakeOrWait(ctx context.Context, owner string, block, _ int) (lease.Grant, error) {
	if s.readersFirst {
		return s.acknowledged(ctx, owner, block, 0)
	}
	return s.acknowledged(ctx, owner, block, wordLife)
}

func (s *writers) acknowledged(ctx context.Context, owner string, block int, word time.Duration) (lease.Grant, error) {
	if s.settings.Replicas > 0 {
		return s.env.Acknowledged(ctx, s.settings,
			func(c rueidis.CoreClient) (lease.Grant, error) { return s.take(ctx, c, owner, block, word) },
			func() error { _, err := s.Release(ctx, owner, 0); return err })
	}
	return s.take(ctx, s.env.Client, owner, block, word)
}

// take asks, and asks again as long as readers that are dead were in the way.
func (s *writers) take(ctx context.Context, c rueidis.CoreClient, owner string, block int, word time.Duration) (lease.Grant, error) {
	for round := 1; ; round++ {
		grant, left, err := s.ask(ctx, c, owner, block, word)
		if err != nil || grant.Taken || left == nil {
			return grant, err
		}
		gone, soonest := int64(0), time.Duration(-1)
		if len(left) > 0 {
			gone, soonest, err = s.prune(ctx, left)
		}
		switch {
		case err == nil && (gone > 0 || soonest == nobody) && round < mostRounds && ctx.Err() == nil:
			continue
		case err == nil && soonest >= 0 && (grant.Left < 0 || soonest < grant.Left):
			grant.Left = soonest
		}
		if word > 0 && (grant.Left < 0 || grant.Left > heartbeat) {
			grant.Left = heartbeat
		}
		return grant, nil // that it is taken is true in any case
	}
}

// ask asks once. If readers have the lock, left are those of them that can be judged;
// else it is nil.
func (s *writers) ask(ctx context.Context, c rueidis.CoreClient, owner string, block int, word time.Duration) (grant lease.Grant, left []candidate, err error) {
	tokens := "0"
	if s.settings.Fencing {
		tokens = strconv.Itoa(block)
	}
	reply, err := scripts.RwlockWriteAcquire.Exec(ctx, c,
		[]string{s.key, s.waiting(), s.turn(), core.Prefixed("redisson_lock_token", s.key)},
		[]string{field(owner), s.settings.Take, s.env.Session, ms(word), tokens, s.settings.Retention}).ToMessage()
	if err != nil {
		return grant, nil, core.Fail(err)
	}
	if n, err := reply.ToInt64(); err == nil { // a writer has it, or readers have their turn
		return lease.Grant{Left: time.Duration(n) * time.Millisecond}, nil, nil
	}
	list, err := reply.ToArray()
	if err != nil {
		return grant, nil, core.Fail(err)
	}
	taken, err := list[0].AsInt64()
	if err == nil && taken == 1 {
		grant.Taken = true
		if grant.Token, err = list[1].AsUint64(); err == nil {
			var n int64
			n, err = list[2].AsInt64()
			grant.Block = int(n)
		}
		return grant, nil, core.Fail(err)
	}
	if err != nil {
		return grant, nil, core.Fail(err)
	}
	n, err := list[1].AsInt64()
	grant.Left = time.Duration(n) * time.Millisecond
	return grant, candidatesOf(list[2:]), core.Fail(err)
}

func (s *writers) Withdraw(ctx context.Context) error {
	return core.Fail(scripts.RwlockWriteWithdraw.Exec(ctx, s.env.Client,
		[]string{s.waiting()}, []string{s.env.Session, s.channel(), s.env.PublishWith(ctx)}).Error())
}

func (s *writers) Count(ctx context.Context, owner string, holds int) (lease.Verdict, error) {
	return core.Verdict(scripts.ReentrantCount.Exec(ctx, s.env.Client,
		[]string{s.key}, []string{field(owner), strconv.Itoa(holds), s.settings.Lease}).ToMessage())
}

func (s *writers) Release(ctx context.Context, owner string, keep time.Duration) (lease.Farewell, error) {
	stay := "0"
	if keep > 0 {
		stay = core.Millis(keep)
	}
	args := []string{field(owner), s.channel(), s.env.PublishWith(ctx), stay, ms(turn)}
	r := scripts.RwlockWriteRelease.Exec(ctx, s.env.Client, []string{s.key, s.readers(), s.turn()}, args)
	if core.Moving(r.Error()) { // then without a turn
		r = scripts.RwlockWriteRelease.Exec(ctx, s.env.Client, []string{s.key}, args)
	}
	return farewell(r)
}

// Convert makes the writer a reader.
func (s *writers) Convert(ctx context.Context, owner string) (lease.Verdict, error) {
	hold := holdKey(s.key, owner, 1)
	args := []string{owner, s.settings.Lease, s.channel(), s.env.PublishWith(ctx), ms(turn)}
	r := scripts.RwlockDowngrade.Exec(ctx, s.env.Client, []string{s.key, hold, s.readers(), s.turn()}, args)
	if !core.Moving(r.Error()) {
		return core.Verdict(r.ToMessage())
	}
	// One key each: the hold's first, since nobody may be a reader without it. Alone it
	// means nothing, and ends with its lease.
	// Nx: a late copy is not to shorten a lease.
	set := s.env.Client.B().Set().Key(hold).Value("1").Nx().PxMilliseconds(s.lease()).Build()
	if err := s.env.Client.Do(ctx, set).Error(); err != nil && !rueidis.IsRedisNil(err) {
		return lease.Gone, core.Fail(err)
	}
	return core.Verdict(scripts.RwlockDowngrade.Exec(ctx, s.env.Client, []string{s.key}, args).ToMessage())
}

// lease is the lease in milliseconds.
func (s *writers) lease() int64 {
	n, _ := strconv.ParseInt(s.settings.Lease, 10, 64) // it was made from a number
	return n
}

func (s *writers) Renewal(owner string, d time.Duration) lease.Renewal {
	return lease.Renewal{Key: s.key, Owner: field(owner), Lease: d}
}

func (s *writers) Force(ctx context.Context) (bool, error) { return s.force(ctx, "write", "1") }
