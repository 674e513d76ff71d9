package explore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/scripts"
)

// The modes of a reentrant lock.
const (
	Fenced  uint8 = 1 // Acquire: with a token
	Receipt uint8 = 1 // Release: remembered
)

// The keys of a reentrant lock.
const (
	lockKey    = "lock"
	tokenKey   = "token"
	receiptKey = "receipt:" // and the session
)

// Reentrant is the reentrant lock kind.
type Reentrant struct {
	Retention int // ticks that the token counter is kept, -1 for ever
	Memory    int // ticks that a receipt is kept
	First     Books
	Instead   map[*scripts.Script]*scripts.Script // scripts to run in the place of others
}

var _ Kind[Books] = Reentrant{}

// Books are the model: what is true of one lock. Untils are ticks.
type Books struct {
	Owner    Owner
	Holds    uint8 // 0: nobody has it, or it was released and is kept taken
	Until    int8  // when Owner's time ends; before that, the lock is taken
	Token    uint64
	Kept     int8 // until when Token is kept; 0: for ever
	Receipts [maxClients]Slip
}

// A Slip is the receipt of one session: the highest owner that was released.
type Slip struct {
	N     uint8
	Until int8
}

// Start is what was asked for.
func (k Reentrant) Start() Books { return k.First }

// at forgets what has ended by now.
func (b Books) at(now int) Books {
	if int(b.Until) <= now {
		b.Owner, b.Holds, b.Until = Owner{}, 0, 0
	}
	if b.Kept > 0 && int(b.Kept) <= now {
		b.Token, b.Kept = 0, 0
	}
	for i, r := range b.Receipts {
		if int(r.Until) <= now {
			b.Receipts[i] = Slip{}
		}
	}
	return b
}

// Has reports whether o has the lock.
func (k Reentrant) Has(b Books, now int, o Owner) bool {
	b = b.at(now)
	return b.Holds > 0 && b.Owner == o
}

// Share: nobody shares.
func (k Reentrant) Share(uint8, uint8) bool { return false }

// Step is what the scripts are to do.
func (k Reentrant) Step(b Books, now int, c Command) (Books, Answer) {
	b = b.at(now)
	taken, mine := b.Until > 0, k.Has(b, now, c.Owner)
	until := int8(now) + c.Ticks
	switch {
	case c.Op == Acquire && taken && !mine:
		return b, Answer{Verdict: Other, Left: time.Duration(int(b.Until)-now) * Tick}

	case c.Op == Acquire:
		if !mine {
			b.Owner, b.Holds, b.Until = c.Owner, 1, until
		}
		b.Until = max(b.Until, until)
		if c.Mode != Fenced {
			return b, Answer{Verdict: Mine}
		}
		if mine && b.Token > 0 { // the owner has one
			return b, Answer{Verdict: Mine, Token: b.Token, Block: 1}
		}
		token, block := b.Token+1, uint8(1)
		clock := micros(now)
		leads := token > clock
		if !leads {
			token, block = clock, c.Block
		}
		switch {
		case k.Retention < 0 || b.Token > 0 && b.Kept == 0:
			b.Kept = 0 // for ever
		case b.Token == 0 || leads || clock/k.part() != b.Token/k.part():
			b.Kept = int8(now + k.Retention)
		}
		b.Token = token + uint64(block) - 1
		return b, Answer{Verdict: Mine, Token: token, Block: block}

	case c.Op == Force && !taken:
		return b, Answer{Verdict: Gone}

	case c.Op == Force:
		b.Owner, b.Holds, b.Until = Owner{}, 0, 0
		return b, Answer{Verdict: Mine}

	case c.Op == Release && c.Mode == Receipt && !mine && b.Receipts[c.Owner.Client].N >= c.Owner.N:
		return b, Answer{Verdict: Mine}

	case !taken:
		return b, Answer{Verdict: Gone}

	case !mine:
		return b, Answer{Verdict: Other}

	case c.Op == Count:
		b.Holds = c.Holds

	case c.Op == Renew:
		b.Until = max(b.Until, until)

	case c.Op == Release:
		b.Holds = 0
		if b.Until = until; c.Ticks == 0 {
			b.Owner, b.Until = Owner{}, 0
		}
		if r := &b.Receipts[c.Owner.Client]; c.Mode == Receipt && r.N < c.Owner.N {
			*r = Slip{c.Owner.N, int8(now + k.Memory)}
		}
	}
	return b, Answer{Verdict: Mine}
}

// part is a 64th of the retention, in microseconds.
func (k Reentrant) part() uint64 { return uint64(k.Retention) * uint64(Tick/time.Microsecond) / 64 }

// micros is the server's clock.
func micros(now int) uint64 { return 1e6 + uint64(now)*uint64(Tick/time.Microsecond) }

// Contents are the keys.
func (k Reentrant) Contents(b Books, now int) (c Contents) {
	b = b.at(now)
	ticks := func(n int8) time.Duration { return time.Duration(n) * Tick }
	if b.Until > 0 {
		field := fmt.Sprintf("%v=%d", b.Owner, b.Holds)
		if b.Holds == 0 {
			field = fmt.Sprintf("%v:released=1", b.Owner)
		}
		c = append(c, Key{Name: lockKey, Fields: []string{field}, Until: ticks(b.Until)})
	}
	for i, r := range b.Receipts {
		if r.N > 0 {
			session := Owner{Client: uint8(i)}.Session()
			c = append(c, Key{Name: receiptKey + session, Text: strconv.Itoa(int(r.N)), Until: ticks(r.Until)})
		}
	}
	if b.Token > 0 {
		c = append(c, Key{Name: tokenKey, Text: strconv.FormatUint(b.Token, 10), Until: ticks(b.Kept)})
	}
	return c
}

// Script is what the store of package reentrant has the server run.
func (k Reentrant) Script(c Command) (s *scripts.Script, keys, args []string) {
	const channel, publish = "channel", "PUBLISH"
	ms := func(ticks int) string { return strconv.FormatInt((time.Duration(ticks) * Tick).Milliseconds(), 10) }
	owner, length := c.Owner.String(), ms(int(c.Ticks))
	keys = []string{lockKey}
	switch {
	case c.Op == Acquire && c.Mode == Fenced:
		retention := "-1"
		if k.Retention >= 0 {
			retention = ms(k.Retention)
		}
		s, keys = scripts.ReentrantAcquireFenced, append(keys, tokenKey)
		args = []string{owner, length, strconv.Itoa(int(c.Block)), retention}
	case c.Op == Acquire:
		s, args = scripts.ReentrantAcquire, []string{owner, length}
	case c.Op == Count:
		s, args = scripts.ReentrantCount, []string{owner, strconv.Itoa(int(c.Holds)), length}
	case c.Op == Renew:
		s, args = scripts.ReentrantRenew, []string{owner, length}
	case c.Op == Release && c.Mode == Receipt:
		s, keys = scripts.ReentrantReleaseReceipt, append(keys, receiptKey+c.Owner.Session())
		args = []string{owner, channel, publish, length, strconv.Itoa(int(c.Owner.N)), ms(k.Memory)}
	case c.Op == Release:
		s, args = scripts.ReentrantRelease, []string{owner, channel, publish, length}
	default:
		s, args = scripts.ReentrantForce, []string{channel, publish}
	}
	if other := k.Instead[s]; other != nil {
		s = other
	}
	return s, keys, args
}

// Read goes by the headers of the scripts.
func (k Reentrant) Read(c Command, reply any) (Answer, error) {
	if list, ok := reply.([]any); ok && c.Op == Renew && len(list) == 1 {
		reply = list[0]
	}
	switch r := reply.(type) {
	case int64:
		switch {
		case c.Op == Acquire && r == -2 && c.Mode != Fenced:
			return Answer{Verdict: Mine}, nil
		case c.Op == Acquire && r >= 0:
			return Answer{Verdict: Other, Left: time.Duration(r) * time.Millisecond}, nil
		case c.Op != Acquire && r == 1:
			return Answer{Verdict: Mine}, nil
		case c.Op != Acquire && r == 0:
			return Answer{Verdict: Gone}, nil
		case c.Op != Acquire && c.Op != Force && r == -1:
			return Answer{Verdict: Other}, nil
		}
	case string:
		if token, err := strconv.ParseUint(r, 10, 64); err == nil && token > 0 && c.Op == Acquire && c.Mode == Fenced {
			return Answer{Verdict: Mine, Token: token, Block: 1}, nil
		}
	case []any:
		if c.Op == Acquire && c.Mode == Fenced && len(r) == 2 {
			text, _ := r[0].(string)
			block, _ := r[1].(int64)
			if token, err := strconv.ParseUint(text, 10, 64); err == nil && token > 0 && block > 0 {
				return Answer{Verdict: Mine, Token: token, Block: uint8(block)}, nil
			}
		}
	}
	return Answer{}, fmt.Errorf("its header does not know %v", reply)
}

// Check is what the headers of the scripts, and CONTRIBUTING.md, promise of all
// of them.
func (k Reentrant) Check(r *Run) error {
	c := r.Command
	before, after := r.Before.Key(lockKey), r.After.Key(lockKey)
	field := c.Owner.String() + "="
	mine := func(lock *Key) bool {
		return lock != nil && slices.ContainsFunc(lock.Fields, func(f string) bool { return strings.HasPrefix(f, field) })
	}
	forEver := k.Retention < 0 || k.First.Token > 0 && k.First.Kept == 0
	if before == nil && after != nil && c.Op != Acquire {
		return errors.New("creation: the lock was nobody's, and no acquire created it")
	}
	for _, key := range r.After {
		if key.Until == 0 && (key.Name != tokenKey || !forEver) {
			return fmt.Errorf("TTL: %s has none", key.Name)
		}
	}
	switch done := r.Answer.Verdict == Mine; {
	case after != nil && len(after.Fields) != 1:
		return fmt.Errorf("owners: the lock has %v", after.Fields)
	case !done && r.Before.String() != r.After.String():
		return errors.New("refusal: the command was refused, and changed something")
	case before != nil && !mine(before) && c.Op != Force && (after == nil || !slices.Equal(before.Fields, after.Fields) || before.Until != after.Until):
		return errors.New("owners: a command of another owner changed the lock")
	case done && c.Op != Release && c.Op != Force && !mine(after):
		return errors.New("owners: the owner was told that it has the lock, and has not")
	case done && c.Op == Count && after.Fields[0] != fmt.Sprint(field, c.Holds):
		return fmt.Errorf("count: it is %v, and was set to %d", after.Fields, c.Holds)
	case done && (c.Op == Release || c.Op == Force) && mine(after):
		return errors.New("release: the owner still has the lock")
	case before != nil && after == nil && c.Op != Release && c.Op != Force:
		return errors.New("TTL: the lock is gone, and nobody released it")
	case before != nil && after != nil && c.Op != Release && after.Until < before.Until:
		return errors.New("TTL: it was lowered")
	case done && (c.Op == Acquire || c.Op == Renew) && after.Until < time.Duration(r.Now+int(c.Ticks))*Tick:
		return errors.New("TTL: it is shorter than the lease")
	}
	if counter := r.Before.Key(tokenKey); r.Answer.Token > 0 && counter != nil && mine(before) && counter.Text != last(r.Answer) {
		return fmt.Errorf("tokens: the owner had %s, and gets %s when it asks again", counter.Text, last(r.Answer))
	}
	again := r.Answer
	switch {
	case c.Op == Acquire && again.Token > 0: // the last of its block
		again.Token, again.Block = again.Token+uint64(again.Block)-1, 1
	case again.Verdict == Mine && (c.Op == Force || c.Op == Release && c.Mode != Receipt):
		if again.Verdict = Gone; after != nil {
			again.Verdict = Other
		}
	}
	if r.Again != again {
		return fmt.Errorf("twice: the answer is %v, and to a repeat %v instead of %v", r.Answer, r.Again, again)
	}
	return nil
}

// last is the last token of a block.
func last(a Answer) string { return strconv.FormatUint(a.Token+uint64(a.Block)-1, 10) }
