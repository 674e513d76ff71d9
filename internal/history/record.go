package history

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Record is what the server itself says of its locks: which owner a key had, and
// from when until when. It reads MONITOR, so it sees every write of every script,
// those of attempts included whose callers have left.
type Record struct {
	conn   net.Conn
	done   chan struct{}
	err    error
	keys   map[string]*keyRecord
	offset int64 // between the clock of Now and the server's, which may be set or slewed
	asked  time.Time
}

// A Period is the stay of one owner in a key.
type Period struct {
	Owner    string
	From, To int64
}

// keyRecord is the record of one key: past periods, and the present one.
type keyRecord struct {
	periods []Period
	now     Period // Owner is "" while the key does not exist; To is when it expires
}

// Watch begins to record the keys of the server at addr that are hashes. A user
// and a password may be given, to tell its connection from others.
func Watch(addr string, auth ...string) (*Record, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	r := &Record{conn: conn, done: make(chan struct{}), keys: map[string]*keyRecord{}}
	in := bufio.NewReaderSize(conn, 1<<16)
	commands := []string{"MONITOR"}
	if len(auth) == 2 {
		commands = slices.Insert(commands, 0, "AUTH "+auth[0]+" "+auth[1])
	}
	for _, command := range commands {
		if _, err = io.WriteString(conn, command+"\r\n"); err != nil {
			break
		}
		var line string
		if line, err = in.ReadString('\n'); err != nil {
			break
		}
		if line != "+OK\r\n" {
			err = fmt.Errorf("%s: %q", command, line)
			break
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("history: monitor: %w", err)
	}
	go func() {
		defer close(r.done)
		for {
			line, err := in.ReadSlice('\n')
			switch {
			case err == nil:
				r.line(string(line))
			case errors.Is(err, bufio.ErrBufferFull): // no command of ours is so long
			default:
				r.err = err
				return
			}
		}
	}()
	return r, nil
}

// Stop ends the record, which can be read from then on. What the server has
// written before is in it. The error is not nil if the record ended before.
func (r *Record) Stop() error {
	select {
	case <-r.done:
		return fmt.Errorf("history: the record ended early: %w", r.err)
	case <-time.After(50 * time.Millisecond): // what is under way
	}
	_ = r.conn.Close()
	<-r.done
	for _, k := range r.keys {
		k.end(k.now.To)
	}
	return nil
}

// line reads a line such as
//
//	+1339518083.107412 [0 lua] "HSET" "key" "field" "1"
func (r *Record) line(line string) {
	before, command, ok := strings.Cut(line, " lua] ")
	if !ok {
		return
	}
	args := strings.Split(strings.Trim(command, "\"\r\n"), `" "`)
	if len(args) < 2 {
		return
	}
	verb := strings.ToUpper(args[0])
	if verb != "HSET" && verb != "HDEL" && verb != "DEL" && verb != "PEXPIRE" {
		return
	}
	stamp, _, _ := strings.Cut(strings.TrimPrefix(before, "+"), " ")
	seconds, fraction, _ := strings.Cut(stamp, ".")
	sec, err1 := strconv.ParseInt(seconds, 10, 64)
	usec, err2 := strconv.ParseInt(fraction, 10, 64)
	if err1 != nil || err2 != nil {
		return
	}
	if time.Since(r.asked) > 100*time.Millisecond {
		r.asked, r.offset = time.Now(), wallOffset()
	}
	at := sec*int64(time.Second) + usec*int64(time.Microsecond) + r.offset
	k := r.keys[args[1]]
	if k == nil {
		k = &keyRecord{}
		r.keys[args[1]] = k
	}
	switch {
	case verb == "HSET" && len(args) == 4:
		if k.now.Owner != args[2] || at > k.now.To+int64(time.Millisecond) {
			k.end(min(at, k.now.To))
			k.now = Period{Owner: args[2], From: at, To: Never}
		}
	case verb == "PEXPIRE" && len(args) == 3:
		if ms, err := strconv.ParseFloat(args[2], 64); err == nil && k.now.Owner != "" {
			k.now.To = at + int64(ms*float64(time.Millisecond))
		}
	case verb == "HDEL" && len(args) == 3 && k.now.Owner == args[2], verb == "DEL":
		k.end(min(at, k.now.To))
	}
}

// wallOffset is what has to be added to the time of the wall clock. A reading of
// time.Now has both clocks, so nothing comes in between.
func wallOffset() int64 {
	now := time.Now()
	return At(now) - now.UnixNano()
}

func (k *keyRecord) end(at int64) {
	if k.now.Owner != "" {
		k.now.To = at
		k.periods = append(k.periods, k.now)
		k.now = Period{}
	}
}

// Periods returns the record of a key, in order.
func (r *Record) Periods(key string) []Period {
	if k := r.keys[key]; k != nil {
		return k.periods
	}
	return nil
}

// grain is what times of the record may be wrong by: the server keeps expiries in
// milliseconds.
const grain = int64(2 * time.Millisecond)

// Taken reports whether the key existed at some moment of the interval.
func (r *Record) Taken(key string, from, to int64) bool {
	periods := r.Periods(key)
	i, _ := slices.BinarySearchFunc(periods, from-grain, func(p Period, at int64) int {
		if p.To < at {
			return -1
		}
		return 1
	})
	return i < len(periods) && periods[i].From <= to+grain
}

// Covers checks that the owner of every hold was in the key all the time in which
// the hold was live.
func (r *Record) Covers(live []Interval) error {
	type stay struct{ key, owner string }
	stays := map[stay][]Period{}
	for key, k := range r.keys {
		for _, p := range k.periods {
			s := stay{key, p.Owner}
			stays[s] = append(stays[s], p)
		}
	}
	for i := range live {
		v := &live[i]
		if !slices.ContainsFunc(stays[stay{v.Name, v.Owner}], func(p Period) bool { return p.From-grain <= v.From && v.To <= p.To+grain }) {
			return fmt.Errorf("%s: the server did not have the owner of\n  %s\nall the time, but\n  %v", v.Name, v, stays[stay{v.Name, v.Owner}])
		}
	}
	return nil
}

// Orphans returns the periods of owners that no hold of the history has, the
// longest first: attempts whose callers had left when they were granted.
func (r *Record) Orphans(ops []Op) []Period {
	known := map[string]bool{}
	for i := range ops {
		known[ops[i].Owner] = true
	}
	var orphans []Period
	for _, k := range r.keys {
		for _, p := range k.periods {
			if !known[p.Owner] {
				orphans = append(orphans, p)
			}
		}
	}
	slices.SortFunc(orphans, func(a, b Period) int { return cmp.Compare(b.To-b.From, a.To-a.From) })
	return orphans
}

// A Delay is a time for which somebody waited for a lock that was free.
type Delay struct {
	For  time.Duration
	Op   *Op    // who waited
	Free Period // the time in which the lock was free, and who took it
}

// String shows the delay.
func (d Delay) String() string {
	return fmt.Sprintf("%v from %s to %s, when %q took it, in %s", d.For, micros(d.Free.From), micros(d.Free.To), d.Free.Owner, d.Op)
}

// Delays finds the times for which a Lock waited while the server had the lock
// free, the longest first.
func (r *Record) Delays(ops []Op) []Delay {
	var delays []Delay
	for i := range ops {
		op := &ops[i]
		if op.Verb != Lock {
			continue
		}
		periods := r.Periods(op.Name)
		// The first period that ends after the call, and then those that begin in it.
		i, _ := slices.BinarySearchFunc(periods, op.Call, func(p Period, at int64) int {
			if p.To < at {
				return -1
			}
			return 1
		})
		for ; i <= len(periods); i++ {
			free := Period{To: op.Return}
			if i > 0 {
				free.From = periods[i-1].To
			}
			if i < len(periods) {
				free.To, free.Owner = periods[i].From, periods[i].Owner
			}
			if free.From >= op.Return {
				break
			}
			if d := time.Duration(min(free.To, op.Return) - max(free.From, op.Call)); d > 0 {
				delays = append(delays, Delay{d, op, free})
			}
		}
	}
	slices.SortFunc(delays, func(a, b Delay) int { return cmp.Compare(b.For, a.For) })
	return delays
}
