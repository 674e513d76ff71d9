package reentrant

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/scripts"
)

// receiptLife is how long a receipt is kept: longer than a release is sent again.
const receiptLife = "60000"

// kind is the reentrant lock kind.
type kind struct {
	gate *core.Gate // nil: none
}

var _ core.Kind = kind{}

func (kind) Name() string    { return "reentrant" }
func (kind) Uses() core.Uses { return core.UsesExclusive }

func (kind) Renewer(env *core.Env) lease.Renewer {
	return core.NewRenewer(env, scripts.ReentrantRenew)
}

func (k kind) Open(env *core.Env, key string, s *core.Settings) core.Lock {
	l := &store{env: env, key: key, settings: s, gate: k.gate, channel: core.Prefixed("redisson_lock__channel", key)}
	if s.Fencing {
		l.counter = core.Prefixed("redisson_lock_token", key)
	}
	if env.Receipts {
		l.receipt = core.Prefixed("redisson_unlock_latch", key) + ":" + env.Session
	}
	return l
}

var _ lease.Successor = (*store)(nil)

// store asks Redis for one lock.
type store struct {
	env      *core.Env
	key      string
	settings *core.Settings
	channel  string
	counter  string // of tokens; with fencing
	receipt  string // with receipts
	gate     *core.Gate
}

func (s *store) Take(ctx context.Context, owner string, block int) (lease.Grant, error) {
	if err := s.gate.Pass(ctx, s.env); err != nil {
		return lease.Grant{}, err
	}
	if s.settings.Replicas > 0 {
		return s.takeAcknowledged(ctx, owner, block)
	}
	var space words
	batch, call := s.taking(&space, owner, block)
	return s.grant(s.env.Run(ctx, batch, call.Keys, call.Args))
}

func (s *store) takeAcknowledged(ctx context.Context, owner string, block int) (lease.Grant, error) {
	batch, call := s.taking(new(words), owner, block)
	return s.env.Acknowledged(ctx, s.settings,
		func(c rueidis.CoreClient) (lease.Grant, error) {
			return s.grant(batch.One().Exec(ctx, c, call.Keys, call.Args).ToMessage())
		},
		func() error { _, err := s.Release(ctx, owner, 0); return err })
}

// words are the keys and arguments of one script: in an array of the caller's they
// cost no allocation.
type words [8]string

// taking is what Redis is asked for a lock.
func (s *store) taking(w *words, owner string, block int) (*scripts.Batch, scripts.Call) {
	if s.settings.Fencing {
		*w = words{s.key, s.counter, owner, s.settings.Take, strconv.Itoa(block), s.settings.Retention}
		return scripts.ReentrantAcquireFencedBatch, scripts.Call{Keys: w[:2], Args: w[2:6]}
	}
	*w = words{s.key, owner, s.settings.Take}
	return scripts.ReentrantAcquireBatch, scripts.Call{Keys: w[:1], Args: w[1:3]}
}

// grant reads the answer.
func (s *store) grant(reply rueidis.RedisMessage, err error) (lease.Grant, error) {
	if err != nil {
		return lease.Grant{}, core.Fail(err)
	}
	if reply.IsInt64() {
		left, err := reply.AsInt64()
		if !s.settings.Fencing && left == -2 {
			return lease.Grant{Taken: true}, nil
		}
		return lease.Grant{Left: time.Duration(left) * time.Millisecond}, core.Fail(err)
	}
	grant := lease.Grant{Taken: true, Block: 1}
	if reply.IsArray() {
		pair, err := reply.ToArray()
		if err != nil || len(pair) != 2 {
			return lease.Grant{}, core.Fail(cmp.Or(err, fmt.Errorf("%d elements for a token and a number", len(pair))))
		}
		n, err := pair[1].AsInt64()
		if err != nil {
			return lease.Grant{}, core.Fail(err)
		}
		reply, grant.Block = pair[0], int(n)
	}
	if grant.Token, err = reply.AsUint64(); err != nil {
		return lease.Grant{}, core.Fail(err)
	}
	return grant, nil
}

func (s *store) Count(ctx context.Context, owner string, holds int) (lease.Verdict, error) {
	return core.Verdict(scripts.ReentrantCount.Exec(ctx, s.env.Client,
		[]string{s.key}, []string{owner, strconv.Itoa(holds), s.settings.Lease}).ToMessage())
}

func (s *store) Release(ctx context.Context, owner string, keep time.Duration) (lease.Farewell, error) {
	publish := s.env.PublishWith(ctx)
	var space words
	batch, call := s.releasing(&space, owner, keep, publish)
	reply, err := s.env.Run(ctx, batch, call.Keys, call.Args)
	return s.env.Farewell(publish, reply, err)
}

// releasing is what Redis is told to release a lock.
func (s *store) releasing(w *words, owner string, keep time.Duration, publish string) (*scripts.Batch, scripts.Call) {
	stay := "0"
	if keep > 0 {
		stay = core.Millis(keep)
	}
	if !s.env.Receipts {
		*w = words{s.key, owner, s.channel, publish, stay}
		return scripts.ReentrantReleaseBatch, scripts.Call{Keys: w[:1], Args: w[1:5]}
	}
	*w = words{s.key, s.receipt, owner, s.channel, publish, stay, owner[strings.LastIndexByte(owner, ':')+1:], receiptLife}
	return scripts.ReentrantReleaseReceiptBatch, scripts.Call{Keys: w[:2], Args: w[2:8]}
}

// Succeeds: WAIT wants a connection of its own.
func (s *store) Succeeds() bool { return s.settings.Replicas == 0 }

func (s *store) Succeed(ctx context.Context, owner, next string, block int) (out lease.Succession) {
	publish := s.env.PublishWith(ctx)
	var space [2]words
	release, first := s.releasing(&space[0], owner, 0, publish)
	take, second := s.taking(&space[1], next, block)
	results := scripts.ExecBoth(ctx, s.env.Client, release.One(), first, take.One(), second)
	reply, err := results[0].ToMessage()
	out.Farewell, out.FarewellErr = s.env.Farewell(publish, reply, err)
	out.Grant, out.GrantErr = s.grant(results[1].ToMessage())
	return out
}

func (s *store) Receipts() bool { return s.env.Receipts }

func (s *store) Renewer() lease.Renewer { return s.settings.Renewer }

func (s *store) Renewal(owner string, d time.Duration) lease.Renewal {
	return lease.Renewal{Key: s.key, Owner: owner, Lease: d}
}

func (s *store) Subscribe(l lease.Listener) (stop func()) {
	return s.env.Subscribe(s.channel, l)
}

func (s *store) Listening() bool { return s.env.Listening() }

func (s *store) Join(l lease.Listener) (stop func(), ok bool) {
	return s.env.Join(s.channel, l)
}

func (s *store) LongestSleep() time.Duration { return s.env.LongestSleep() }

func (s *store) Info(ctx context.Context) (core.Info, error) {
	if err := s.gate.Pass(ctx, s.env); err != nil {
		return core.Info{}, err
	}
	reply, err := scripts.ReentrantInfo.Exec(ctx, s.env.Client, []string{s.key}, nil).ToArray()
	if err != nil {
		return core.Info{}, core.Fail(err)
	}
	info := core.Info{Mode: "exclusive"}
	left, err := reply[0].AsInt64()
	if err != nil {
		return core.Info{}, core.Fail(err)
	}
	if info.Left = time.Duration(left) * time.Millisecond; left == -2 {
		return core.Info{Mode: "free"}, nil
	}
	for i := 1; i+1 < len(reply); i += 2 {
		owner, err := reply[i].ToString()
		if err != nil {
			return core.Info{}, core.Fail(err)
		}
		holds, _ := reply[i+1].AsInt64() // other data in the hash counts 0 holds
		info.Holders = append(info.Holders, core.Holder{Owner: owner, Holds: int(holds)})
	}
	return info, nil
}

func (s *store) Force(ctx context.Context) (bool, error) {
	if err := s.gate.Pass(ctx, s.env); err != nil {
		return false, err
	}
	n, err := scripts.ReentrantForce.Exec(ctx, s.env.Client,
		[]string{s.key}, []string{s.channel, s.env.PublishWith(ctx)}).AsInt64()
	return n == 1, core.Fail(err)
}
