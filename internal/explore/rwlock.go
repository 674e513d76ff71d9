package explore

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/scripts"
)

// The modes of a read-write lock: which side, and how.
const (
	Read  uint8 = 1 // a reader
	Write uint8 = 2 // a writer

	Waits uint8 = 4 // Acquire: it waits when it is refused
	Back  uint8 = 8 // Acquire: a reader stands back, a writer says that it waits

	sides = Read | Write
)

// The keys of a read-write lock.
const (
	holdKey    = "hold:" // and the owner
	waitingKey = "readers"
	turnKey    = "turn"
	wordsKey   = "writers"
)

const (
	maxHolds = 3 // root holds of a client

	word = 1 // ticks that a writer's word is good for
	turn = 1 // ticks that the turn of readers lasts
)

// Rwlock is the read-write lock kind.
type Rwlock struct {
	First   Ledger
	Instead map[*scripts.Script]*scripts.Script // scripts to run in the place of others
}

var _ Kind[Ledger] = Rwlock{}

// A Ledger is the model: what is true of one lock. Untils are ticks.
type Ledger struct {
	Mode   uint8 // Read, Write, or 0: free
	Until  int8
	Writer Owner
	Holds  uint8 // the writer's; 0: it was released and is kept taken
	Reads  [maxClients][maxHolds]ReadHold

	Words      [maxClients]int8 // when each session's word ends; 0: it gave none
	WordsUntil int8
	Waiting    [maxClients]bool
	WaitsUntil time.Duration
	Turn       [maxClients]bool
	TurnUntil  int8
}

// A ReadHold is the hold of one reader.
type ReadHold struct {
	In    bool // the lock counts it
	Until int8 // when its own key ends; 0: there is none
}

// Start is what was asked for.
func (k Rwlock) Start() Ledger { return k.First }

func (l *Ledger) hold(o Owner) *ReadHold {
	if o.N == 0 || o.N > maxHolds {
		return &ReadHold{}
	}
	return &l.Reads[o.Client][o.N-1]
}

// free takes the lock, and nothing else, away.
func (l *Ledger) free() {
	l.Mode, l.Until, l.Writer, l.Holds = 0, 0, Owner{}, 0
	for i := range l.Reads {
		for j := range l.Reads[i] {
			l.Reads[i][j].In = false
		}
	}
}

// readers is how many readers the lock counts.
func (l *Ledger) readers() (n int) {
	for i := range l.Reads {
		for j := range l.Reads[i] {
			if l.Reads[i][j].In {
				n++
			}
		}
	}
	return n
}

// settle forgets sets that have become empty, as the server does.
func (l *Ledger) settle() {
	if l.Words == ([maxClients]int8{}) {
		l.WordsUntil = 0
	}
	if l.Waiting == ([maxClients]bool{}) {
		l.WaitsUntil = 0
	}
	if l.Turn == ([maxClients]bool{}) {
		l.TurnUntil = 0
	}
}

// at forgets what has ended by now.
func (l Ledger) at(now int) Ledger {
	if l.Mode != 0 && int(l.Until) <= now {
		l.free()
	}
	for i := range l.Reads {
		for j := range l.Reads[i] {
			if int(l.Reads[i][j].Until) <= now {
				l.Reads[i][j].Until = 0
			}
		}
	}
	if int(l.WordsUntil) <= now {
		l.Words = [maxClients]int8{}
	}
	if l.WaitsUntil <= time.Duration(now)*Tick {
		l.Waiting = [maxClients]bool{}
	}
	if int(l.TurnUntil) <= now {
		l.Turn = [maxClients]bool{}
	}
	l.settle()
	return l
}

// Has reports whether o has the lock, in either mode.
func (k Rwlock) Has(l Ledger, now int, o Owner) bool {
	l = l.at(now)
	h := l.hold(o)
	return h.In && h.Until > 0 || l.Mode == Write && l.Holds > 0 && l.Writer == o
}

// Share: readers do.
func (k Rwlock) Share(a, b uint8) bool { return a&b&Read != 0 }

// Step is what the scripts are to do.
func (k Rwlock) Step(l Ledger, now int, c Command) (Ledger, Answer) {
	l = l.at(now)
	until := int8(now) + c.Ticks
	left := func(u int8) time.Duration { return time.Duration(int(u)-now) * Tick }
	h := l.hold(c.Owner)
	writes := l.Mode == Write && l.Holds > 0 && l.Writer == c.Owner
	other := Answer{Verdict: Gone}
	if l.Mode != 0 {
		other.Verdict = Other
	}
	reader := Answer{Verdict: Gone} // of a reader that has no hold
	if l.Mode == Write {
		reader.Verdict = Other
	}
	mine := Answer{Verdict: Mine}
	lift := func() {
		l.Until, h.Until = max(l.Until, until), max(h.Until, until)
	}
	turns := func() {
		if l.Waiting != ([maxClients]bool{}) {
			l.Turn, l.TurnUntil = l.Waiting, int8(now+turn)
			l.Waiting, l.WaitsUntil = [maxClients]bool{}, 0
		}
	}

	switch side := c.Mode & sides; {
	case c.Op == Acquire && side == Read:
		refused := time.Duration(0)
		switch {
		case h.In:
		case l.Mode == Write:
			refused = left(l.Until)
		case c.Mode&Back != 0 && !l.Turn[c.Owner.Client]:
			if last := slices.Max(l.Words[:]); int(last) > now {
				if refused = left(last); l.Mode != 0 {
					refused = min(refused, left(l.Until))
				}
			}
		}
		if refused > 0 {
			if c.Mode&Waits != 0 {
				l.Waiting[c.Owner.Client] = true
				l.WaitsUntil = max(l.WaitsUntil, time.Duration(now)*Tick+refused+time.Second)
			}
			return l, Answer{Verdict: Other, Left: refused}
		}
		if l.Mode == 0 {
			l.Mode = Read
		}
		h.In = true
		lift()
		l.Waiting[c.Owner.Client], l.Turn[c.Owner.Client] = false, false

	case c.Op == Acquire:
		if l.Mode == Write && !writes {
			return l, Answer{Verdict: Other, Left: left(l.Until)}
		}
		if !writes && (l.Mode == Read || l.TurnUntil > 0) {
			if c.Mode&Waits != 0 && c.Mode&Back != 0 {
				l.Words[c.Owner.Client] = int8(now + word)
				for i, end := range l.Words {
					if int(end) <= now {
						l.Words[i] = 0
					}
				}
				l.WordsUntil = max(l.WordsUntil, int8(now+word))
			}
			if l.Mode == 0 {
				return l, Answer{Verdict: Other, Left: left(l.TurnUntil)}
			}
			return l, Answer{Verdict: Other, Left: left(l.Until)}
		}
		if !writes {
			l.Mode, l.Writer, l.Holds = Write, c.Owner, 1
		}
		l.Until = max(l.Until, until)
		l.Words[c.Owner.Client] = 0

	case c.Op == Count && !writes, c.Op == Renew && side == Write && !writes,
		c.Op == Release && side == Write && !writes:
		return l, other

	case c.Op == Count:
		l.Holds = c.Holds

	case c.Op == Renew && side == Write:
		l.Until = max(l.Until, until)

	case c.Op == Renew && (!h.In || h.Until == 0):
		if h.In {
			reader.Verdict = Gone
		}
		return l, reader

	case c.Op == Renew:
		lift()

	case c.Op == Release && side == Write:
		if l.Holds = 0; c.Ticks > 0 {
			l.Until = until
			break
		}
		l.free()
		turns()

	case c.Op == Release:
		in := h.In
		*h = ReadHold{}
		if !in {
			return l, reader
		}
		if l.Mode == Read && l.readers() == 0 {
			l.free()
		}

	case c.Op == Convert && writes:
		l.Mode, l.Writer, l.Holds = Read, Owner{}, 0
		h.In = true
		lift()
		turns()

	case c.Op == Convert && h.In:
		lift()

	case c.Op == Convert:
		return l, other

	case c.Op == Prune:
		switch {
		case l.Mode == 0:
			return l, Answer{Verdict: Gone}
		case l.Mode == Write || !h.In:
			return l, Answer{Verdict: Other}
		case h.Until > 0:
			if l.readers() == 1 {
				l.Until = h.Until
			}
			return l, Answer{Verdict: Other, Left: left(h.Until)}
		}
		if h.In = false; l.readers() == 0 {
			l.free()
		}

	case c.Op == Force && l.Mode != side:
		return l, Answer{Verdict: Gone}

	case c.Op == Force:
		l.free()
	}
	l.settle()
	return l, mine
}

// Contents are the keys.
func (k Rwlock) Contents(l Ledger, now int) (c Contents) {
	l = l.at(now)
	ticks := func(n int8) time.Duration { return time.Duration(n) * Tick }
	var fields, words []string
	set := func(in [maxClients]bool) (members []string) {
		for i := range in {
			if in[i] {
				members = append(members, Owner{Client: uint8(i)}.Session())
			}
		}
		return members
	}
	for i := range l.Reads {
		for j, h := range l.Reads[i] {
			o := Owner{uint8(i), uint8(j + 1)}
			if h.In {
				fields = append(fields, o.String()+"=1")
			}
			if h.Until > 0 {
				c = append(c, Key{Name: holdKey + o.String(), Text: "1", Until: ticks(h.Until)})
			}
		}
	}
	switch {
	case l.Mode == Write && l.Holds > 0:
		fields = append(fields, fmt.Sprintf("%v:write=%d", l.Writer, l.Holds), "mode=write")
	case l.Mode == Write:
		fields = append(fields, fmt.Sprintf("%v:write:released=1", l.Writer), "mode=write")
	case l.Mode == Read:
		fields = append(fields, "mode=read")
	}
	if l.Mode != 0 {
		slices.Sort(fields)
		c = append(c, Key{Name: lockKey, Fields: fields, Until: ticks(l.Until)})
	}
	for i, end := range l.Words {
		if end > 0 {
			words = append(words, fmt.Sprintf("%s=%d", Owner{Client: uint8(i)}.Session(), micros(int(end))/1000))
		}
	}
	if members := set(l.Waiting); members != nil {
		c = append(c, Key{Name: waitingKey, Type: "set", Fields: members, Until: l.WaitsUntil})
	}
	if members := set(l.Turn); members != nil {
		c = append(c, Key{Name: turnKey, Type: "set", Fields: members, Until: ticks(l.TurnUntil)})
	}
	if words != nil {
		c = append(c, Key{Name: wordsKey, Scores: words, Until: ticks(l.WordsUntil)})
	}
	slices.SortFunc(c, func(a, b Key) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

// Script is what the stores of package rwlock have the server run.
func (k Rwlock) Script(c Command) (s *scripts.Script, keys, args []string) {
	const channel, publish = "channel", "PUBLISH"
	ms := func(ticks int) string { return strconv.FormatInt((time.Duration(ticks) * Tick).Milliseconds(), 10) }
	owner, length := c.Owner.String(), ms(int(c.Ticks))
	field, hold := owner+":write", holdKey+owner
	flag := func(mode uint8) string {
		if c.Mode&mode != 0 {
			return "1"
		}
		return "0"
	}
	keys = []string{lockKey}
	switch side := c.Mode & sides; {
	case c.Op == Acquire && side == Read:
		s, keys = scripts.RwlockReadAcquire, append(keys, hold, wordsKey, waitingKey, turnKey)
		args = []string{owner, length, "", c.Owner.Session(), flag(Waits), flag(Back), "0"}
	case c.Op == Acquire:
		life := "0"
		if c.Mode&Waits != 0 && c.Mode&Back != 0 {
			life = ms(word)
		}
		s, keys = scripts.RwlockWriteAcquire, append(keys, wordsKey, turnKey, tokenKey)
		args = []string{field, length, c.Owner.Session(), life, "0", "-1"}
	case c.Op == Count:
		s, args = scripts.ReentrantCount, []string{field, strconv.Itoa(int(c.Holds)), length}
	case c.Op == Renew && side == Read:
		s, keys, args = scripts.RwlockReadRenew, append(keys, hold), []string{owner, length}
	case c.Op == Renew:
		s, args = scripts.ReentrantRenew, []string{field, length}
	case c.Op == Release && side == Read:
		s, keys, args = scripts.RwlockReadRelease, append(keys, hold, wordsKey), []string{owner, channel, publish}
	case c.Op == Release:
		s, keys = scripts.RwlockWriteRelease, append(keys, waitingKey, turnKey)
		args = []string{field, channel, publish, length, ms(turn)}
	case c.Op == Convert:
		s, keys = scripts.RwlockDowngrade, append(keys, hold, waitingKey, turnKey)
		args = []string{owner, length, channel, publish, ms(turn)}
	case c.Op == Prune:
		s, keys, args = scripts.RwlockPrune, append(keys, hold), []string{channel, publish, owner, "1"}
	default:
		mode, message := "read", "0"
		if side == Write {
			mode, message = "write", "1"
		}
		s, args = scripts.RwlockForce, []string{mode, channel, publish, message}
	}
	if other := k.Instead[s]; other != nil {
		s = other
	}
	return s, keys, args
}

// Read goes by the headers of the scripts.
func (k Rwlock) Read(c Command, reply any) (Answer, error) {
	other := func(ms int64) (Answer, error) {
		return Answer{Verdict: Other, Left: time.Duration(ms) * time.Millisecond}, nil
	}
	list, _ := reply.([]any)
	number := func(i int) int64 {
		n, _ := list[i].(int64)
		return n
	}
	if n, ok := reply.(int64); ok {
		switch {
		case c.Op == Acquire && n == -2 && c.Mode&Read != 0:
			return Answer{Verdict: Mine}, nil
		case c.Op == Acquire && n >= 0:
			return other(n)
		case c.Op != Acquire && n == 1:
			return Answer{Verdict: Mine}, nil
		case c.Op != Acquire && n == 0:
			return Answer{Verdict: Gone}, nil
		case c.Op != Acquire && n == -1:
			return other(0)
		}
	}
	switch {
	case c.Op == Renew && len(list) == 1:
		return k.Read(c, list[0])
	case c.Op == Acquire && c.Mode&Write != 0 && len(list) > 2 && number(0) == 1:
		return Answer{Verdict: Mine}, nil
	case c.Op == Acquire && c.Mode&Write != 0 && len(list) > 3 && number(0) == 0:
		return other(number(1))
	case c.Op == Release && c.Mode&Read != 0 && len(list) > 2 && number(0) == 1: // others read
		return Answer{Verdict: Mine}, nil
	case c.Op == Prune && len(list) == 2 && number(0) > 0:
		return Answer{Verdict: Mine}, nil
	case c.Op == Prune && len(list) == 2 && number(1) == -2:
		return Answer{Verdict: Gone}, nil
	case c.Op == Prune && len(list) == 2:
		return other(max(number(1), 0))
	}
	return Answer{}, fmt.Errorf("its header does not know %v", reply)
}

// Check is what the headers of the scripts, and CONTRIBUTING.md, promise of all of
// them.
func (k Rwlock) Check(r *Run) error {
	c := r.Command
	before, after := r.Before.Key(lockKey), r.After.Key(lockKey)
	hold, then := r.Before.Key(holdKey+c.Owner.String()), r.After.Key(holdKey+c.Owner.String())
	owner, field := c.Owner.String()+"=", c.Owner.String()+":write="
	in := func(lock *Key, prefixes ...string) bool {
		return lock != nil && slices.ContainsFunc(lock.Fields, func(f string) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f, p) })
		})
	}
	// others are the fields that are not the owner's.
	others := func(lock *Key) (fields []string) {
		if lock != nil {
			for _, f := range lock.Fields {
				if !strings.HasPrefix(f, owner) && !strings.HasPrefix(f, c.Owner.String()+":") && !strings.HasPrefix(f, "mode=") {
					fields = append(fields, f)
				}
			}
		}
		return fields
	}
	end := time.Duration(r.Now+int(c.Ticks)) * Tick
	for _, key := range r.After {
		if key.Until == 0 {
			return fmt.Errorf("TTL: %s has none", key.Name)
		}
	}
	if after != nil && in(after, "mode=write") && len(after.Fields) != 2 {
		return fmt.Errorf("owners: a writer shares the lock: %v", after.Fields)
	}
	if after != nil && len(after.Fields) < 2 {
		return fmt.Errorf("owners: the lock is nobody's: %v", after.Fields)
	}
	done := r.Answer.Verdict == Mine
	lowers := c.Op == Release || c.Op == Force || c.Op == Prune
	switch {
	case before == nil && after != nil && c.Op != Acquire:
		return errors.New("creation: the lock was nobody's, and no acquire created it")
	case c.Op != Force && !slices.Equal(others(before), others(after)):
		return errors.New("owners: a command of another owner changed the lock")
	case !done && c.Op != Prune && (fmt.Sprint(before) != fmt.Sprint(after) || c.Op != Release && fmt.Sprint(hold) != fmt.Sprint(then)):
		return errors.New("refusal: the command was refused, and changed something")
	case done && (c.Op == Acquire && c.Mode&Read != 0 || c.Op == Convert || c.Op == Renew && c.Mode&Read != 0) && (!in(after, owner) || then == nil):
		return errors.New("owners: the reader was told that it has the lock, and has not")
	case done && (c.Op == Acquire || c.Op == Count || c.Op == Renew) && c.Mode&Write != 0 && !in(after, field):
		return errors.New("owners: the writer was told that it has the lock, and has not")
	case done && (c.Op == Release || c.Op == Force) && c.Mode&Write != 0 && in(after, field),
		done && (c.Op == Release || c.Op == Force) && c.Mode&Read != 0 && in(after, owner),
		done && c.Op == Convert && in(after, field):
		return errors.New("release: the owner still has the lock")
	case done && c.Op == Prune && hold != nil:
		return errors.New("prune: a reader was taken out whose hold has not ended")
	case !lowers && before != nil && after != nil && after.Until < before.Until, hold != nil && then != nil && then.Until < hold.Until:
		return errors.New("TTL: it was lowered")
	case done && (c.Op == Acquire || c.Op == Renew || c.Op == Convert) && after.Until < end,
		done && (c.Op == Acquire && c.Mode&Read != 0 || c.Op == Renew && c.Mode&Read != 0 || c.Op == Convert) && then.Until < end:
		return errors.New("TTL: it is shorter than the lease")
	}
	for _, key := range r.After { // the lock lives as long as each of its holds
		if name, ok := strings.CutPrefix(key.Name, holdKey); ok && in(after, name+"=") && in(after, "mode=read") && after.Until < key.Until {
			return fmt.Errorf("TTL: the lock ends before the hold of %s", name)
		}
	}
	again := r.Answer
	switch {
	case again.Verdict != Mine:
	case c.Op == Force:
		again.Verdict = Gone
	case c.Op == Release:
		if again.Verdict = Gone; after != nil && (c.Mode&Write != 0 || in(after, "mode=write")) {
			again.Verdict = Other
		}
	case c.Op == Prune:
		if again.Verdict = Gone; after != nil {
			again.Verdict = Other
		}
	}
	if r.Again != again {
		return fmt.Errorf("twice: the answer is %v, and to a repeat %v instead of %v", r.Answer, r.Again, again)
	}
	return nil
}
