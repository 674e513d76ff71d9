package holdfast

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/lease"
)

// Options tune a lock. They are given by value when the lock is made and belong
// to that handle and the holds taken through it; the zero value means every
// default, a negative value off or never. A field that a kind does not use is
// [ErrOption] when it is set.
type Options struct {
	// Class labels the lock's observations, so that metrics need not carry ids.
	// Default: the kind, and for locks made by For the name given to New.
	Class string

	// Lease is how long Redis keeps the lock after the last renewal, in whole
	// milliseconds, rounded up. Default 30 s, at least 20 ms, at most 10 years.
	// It never takes its length from a context's deadline.
	Lease time.Duration

	// Fixed turns the watchdog off: the lease runs once, or until Extend.
	Fixed bool

	// Wait bounds how long Lock and Do wait for the lock, and nothing else.
	// Default: as long as ctx allows. Negative: one attempt, as TryLock.
	Wait time.Duration

	// MaxHold ends a hold that lasts longer: it is lost with [ReasonMaxHold], and
	// Redis lets go of it at the end of its lease. Default: no limit.
	MaxHold time.Duration

	// Grace is how long renewal outlives the caller's context: code that has not
	// seen the end of its context keeps its lock, a leaked goroutine does not. It
	// counts from the first renewal after the end. Default: two leases. Negative:
	// until Unlock.
	Grace time.Duration

	// Replicas is how many replicas must have acknowledged a grant before Lock
	// returns it. Default 0, none.
	Replicas int

	// ReplicaTimeout bounds the wait for Replicas. Default 1 s.
	ReplicaTimeout time.Duration

	// MinHold keeps the lock taken for at least this long after it was granted,
	// whether Unlock comes sooner or the process dies: once per interval, not once
	// per replica. Default none. A lock with MinHold is not handed over locally.
	// Exclusive kinds only.
	MinHold time.Duration

	// Handoff bounds how many times in a row the lock passes between goroutines of
	// this process without asking Redis. Default 64, negative never. Exclusive
	// kinds only.
	Handoff int

	// Fencing gives every hold a token that rises from hold to hold; see
	// [Lease.Token]. Each name, each id of For included, then leaves a small key
	// with its last token for TokenRetention. Exclusive kinds only.
	Fencing bool

	// TokenRetention is how long Redis remembers the last token after its last use,
	// give or take a 64th.
	// Default 24 h. Negative: for ever, which is required where Redisson takes
	// fenced locks of the same name. Needs Fencing.
	TokenRetention time.Duration
}

// SessionOptions tune a session. The zero value means every default, a negative
// value off or never.
type SessionOptions struct {
	// Prefix goes before every lock's name. Default none, so that Redisson sees the
	// same names.
	Prefix string

	// Label answers "who holds it?": it is the readable part of the owner that
	// Redis stores. Default host:pid. At most 128 bytes.
	Label string

	// Timeout bounds each command sent to Redis. Default 3 s, at least 1 ms.
	Timeout time.Duration

	// Family is the pub/sub family of release messages. Default [FamilyAuto].
	Family Family

	// Receipts makes a resent release exact: Redis remembers for a short time the
	// last lock that this session released under a name. It costs about 5 % of the
	// latency of a lock and unlock, and 20 % of the peak throughput. Without it a
	// release whose reply was lost may be reported as done although the lease had
	// ended unnoticed just before, or the other way round; a grant or a count is
	// never wrong.
	Receipts bool

	// RenewBatch is how many locks one renewal script carries on one server.
	// Default 100, at most 1000.
	RenewBatch int

	// StallAfter is how long a lock may be waited for or held before it is reported
	// as stalled. Default 1 minute. Negative: never.
	StallAfter time.Duration

	// Logger gets losses and stalls at level Warn, nothing else. Default
	// slog.Default(); slog.New(slog.DiscardHandler) for silence.
	Logger *slog.Logger

	// Observer is told of every acquire, release, renewal and loss.
	Observer Observer
}

// A Family is one of the two kinds of pub/sub that Redis has. Messages of one do
// not reach subscribers of the other, so all processes that share locks must
// agree, Java included.
type Family uint8

const (
	// FamilyAuto is FamilySharded for a cluster whose servers know it (Redis 7,
	// Valkey), and FamilyPublish otherwise; Redisson decides likewise.
	FamilyAuto Family = iota
	// FamilyPublish uses PUBLISH and SUBSCRIBE.
	FamilyPublish
	// FamilySharded uses SPUBLISH and SSUBSCRIBE.
	FamilySharded
	// FamilyBoth sends with both and listens to both, while a fleet changes over.
	FamilyBoth
)

const (
	defaultLease     = 30 * time.Second
	minLease         = 20 * time.Millisecond
	longest          = 10 * 365 * 24 * time.Hour
	defaultHandoff   = 64
	defaultRetention = 24 * time.Hour
	defaultTimeout   = 3 * time.Second
	defaultBatch     = 100
	maxBatch         = 1000
	maxLabel         = 128
)

// withDefaults checks o for a lock of kind k and fills in its defaults.
func (o Options) withDefaults(k core.Kind) (Options, error) {
	var err error
	check := func(e error) {
		if err == nil {
			err = e
		}
	}
	if o.Lease == 0 {
		o.Lease = defaultLease
	}
	lease, leaseErr := checkLease("Lease", o.Lease)
	o.Lease = lease
	check(leaseErr)
	check(checkLongest("Wait", o.Wait))
	check(checkLongest("MaxHold", o.MaxHold))
	check(checkLongest("Grace", o.Grace))
	check(checkLongest("ReplicaTimeout", o.ReplicaTimeout))
	check(checkLongest("MinHold", o.MinHold))
	check(checkLongest("TokenRetention", o.TokenRetention))
	if k.Uses()&core.UsesExclusive == 0 {
		for field, set := range map[string]bool{
			"MinHold": o.MinHold != 0, "Handoff": o.Handoff != 0, "Fencing": o.Fencing, "TokenRetention": o.TokenRetention != 0,
		} {
			if set {
				check(fmt.Errorf("%w: %s is not used by %s locks", ErrOption, field, k.Name()))
			}
		}
	}
	if o.Replicas < 0 {
		o.Replicas = 0
	}
	if o.ReplicaTimeout != 0 && o.Replicas == 0 {
		check(fmt.Errorf("%w: ReplicaTimeout is %v without Replicas", ErrOption, o.ReplicaTimeout))
	}
	if o.ReplicaTimeout < 0 || o.ReplicaTimeout > 0 && o.ReplicaTimeout < time.Millisecond {
		check(fmt.Errorf("%w: ReplicaTimeout is %v, at least 1ms", ErrOption, o.ReplicaTimeout))
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = time.Second
	}
	if o.TokenRetention != 0 && !o.Fencing {
		check(fmt.Errorf("%w: TokenRetention is %v without Fencing", ErrOption, o.TokenRetention))
	}
	if o.TokenRetention > 0 && o.TokenRetention < o.Lease {
		check(fmt.Errorf("%w: TokenRetention is %v, at least the Lease of %v", ErrOption, o.TokenRetention, o.Lease))
	}
	if o.TokenRetention == 0 {
		o.TokenRetention = max(defaultRetention, o.Lease)
	}
	if o.Grace == 0 {
		o.Grace = 2 * o.Lease
	}
	if o.Handoff == 0 && k.Uses()&core.Shared == 0 {
		o.Handoff = defaultHandoff
	}
	o.Handoff = max(o.Handoff, 0)
	o.MaxHold, o.MinHold = max(o.MaxHold, 0), max(o.MinHold, 0)
	return o, err
}

// checkLease checks a lease and rounds it up to whole milliseconds, in which
// Redis counts.
func checkLease(field string, d time.Duration) (time.Duration, error) {
	if d < minLease {
		return d, fmt.Errorf("%w: %s is %v, at least %v", ErrOption, field, d, minLease)
	}
	if err := checkLongest(field, d); err != nil {
		return d, err
	}
	return (d + time.Millisecond - 1).Truncate(time.Millisecond), nil
}

func checkLongest(field string, d time.Duration) error {
	if d > longest {
		return fmt.Errorf("%w: %s is %v, at most %v", ErrOption, field, d, longest)
	}
	return nil
}

// terms are what the core needs of o.
func (o Options) terms() lease.Terms {
	return lease.Terms{
		Lease: o.Lease, Fixed: o.Fixed, MaxHold: o.MaxHold, Grace: o.Grace, MinHold: o.MinHold,
		Handoff: o.Handoff, Fencing: o.Fencing,
		Variant: variant{o.Replicas, o.TokenRetention},
	}
}

// variant is what else must be equal before a lock is handed over locally.
type variant struct {
	replicas  int
	retention time.Duration
}

// within reports what o asks for and the root hold's options do not give: a
// nested hold lives by its root's, and must not get less than it asked for.
func (o *Options) within(root *Options) error {
	more := func(field string, has any) error {
		return fmt.Errorf("%w: a nested hold asks for more than its root has: %s, and the root has %v", ErrOption, field, has)
	}
	switch {
	case o.Fencing && !root.Fencing:
		return more("Fencing", root.Fencing)
	case !o.Fixed && root.Fixed:
		return more("a watchdog", "a fixed lease of "+root.Lease.String())
	case o.Fixed && root.Fixed && o.Lease > root.Lease:
		return more("Lease "+o.Lease.String(), root.Lease)
	case o.MinHold > root.MinHold:
		return more("MinHold "+o.MinHold.String(), root.MinHold)
	case o.Replicas > root.Replicas:
		return more("Replicas "+strconv.Itoa(o.Replicas), root.Replicas)
	}
	return nil
}

// withDefaults checks o and fills in its defaults.
func (o SessionOptions) withDefaults() (SessionOptions, error) {
	if o.Prefix != "" {
		if err := core.CheckName(o.Prefix + "x"); err != nil {
			return o, fmt.Errorf("%w: Prefix: %w", ErrOption, err)
		}
	}
	if o.Label == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Label = host + ":" + strconv.Itoa(os.Getpid())
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.RenewBatch == 0 {
		o.RenewBatch = defaultBatch
	}
	if o.StallAfter == 0 {
		o.StallAfter = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case len(o.Label) > maxLabel:
		return o, fmt.Errorf("%w: Label %q has %d bytes, the limit is %d", ErrOption, o.Label, len(o.Label), maxLabel)
	case o.Timeout < time.Millisecond:
		return o, fmt.Errorf("%w: Timeout is %v, at least 1ms", ErrOption, o.Timeout)
	case o.Family > FamilyBoth:
		return o, fmt.Errorf("%w: Family is %d, at most %d", ErrOption, o.Family, FamilyBoth)
	case o.RenewBatch < 1 || o.RenewBatch > maxBatch:
		return o, fmt.Errorf("%w: RenewBatch is %d, from 1 to %d", ErrOption, o.RenewBatch, maxBatch)
	}
	if err := checkLongest("Timeout", o.Timeout); err != nil {
		return o, err
	}
	return o, checkLongest("StallAfter", o.StallAfter)
}
