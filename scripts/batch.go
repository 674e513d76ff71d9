package scripts

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
)

// A Batch runs one script for many callers at once, on one server: as one script
// that runs it for each, in order. A run that fails leaves the others alone.
type Batch struct {
	one, many  *Script
	keys, args int // of each run
	joint      bool
	head       int // arguments that all runs of a joint batch share
}

// The scripts that many callers may want run at the same moment.
var (
	ReentrantAcquireBatch        = NewBatch(ReentrantAcquire, 1, 2)
	ReentrantAcquireFencedBatch  = NewBatch(ReentrantAcquireFenced, 2, 4)
	ReentrantReleaseBatch        = NewBatch(ReentrantRelease, 1, 4)
	ReentrantReleaseReceiptBatch = NewBatch(ReentrantReleaseReceipt, 2, 6)
	StockReserveBatch            = newJoint(StockReserve, 6, 5, 5)
)

// NewBatch returns a batch of runs of s, each with so many keys and arguments.
func NewBatch(s *Script, keys, args int) *Batch {
	var b strings.Builder
	fmt.Fprintf(&b, batchHead, s.text, keys)
	refill(&b, "k", "KEYS", keys)
	refill(&b, "a", "ARGV", args)
	b.WriteString(batchTail)
	return &Batch{one: s, many: New(s.name+"_batch", b.String()), keys: keys, args: args}
}

// newJoint returns a batch of runs of s, which itself takes many and returns a list of
// their replies: all with the same keys and the same head of arguments, and each with
// so many arguments of its own.
func newJoint(s *Script, keys, head, args int) *Batch {
	return &Batch{one: s, many: s, keys: keys, args: head + args, joint: true, head: head}
}

// The body of the script becomes a function. What it uses most is made local, and
// the tables that it gets are filled anew for each run, since making them is a
// third of the server's time.
const batchHead = `local redis, tonumber, KEYS, ARGV = redis, tonumber, KEYS, ARGV
local function run(KEYS, ARGV)
%s
end

local k, a, replies = {}, {}, {}
for i = 0, #KEYS / %d - 1 do
`

// An error that a command raises in a body is a table in newer servers and a text
// in older ones; it becomes the reply of that run.
const batchTail = `  local ok, reply = pcall(run, k, a)
  if not ok and type(reply) ~= 'table' then
    reply = redis.error_reply(tostring(reply))
  end
  replies[i + 1] = reply
end
return replies
`

// refill writes the line that puts the i-th n elements of from into to.
func refill(b *strings.Builder, to, from string, n int) {
	left, right := make([]string, n), make([]string, n)
	for j := range n {
		left[j] = fmt.Sprintf("%s[%d]", to, j+1)
		right[j] = fmt.Sprintf("%s[i * %d + %d]", from, n, j+1)
	}
	fmt.Fprintf(b, "  %s = %s\n", strings.Join(left, ", "), strings.Join(right, ", "))
}

// One is the script that the batch runs.
func (b *Batch) One() *Script { return b.one }

// Run runs the script once. The error is the client's, or the error reply.
func (b *Batch) Run(ctx context.Context, c rueidis.CoreClient, keys, args []string) (rueidis.RedisMessage, error) {
	if !b.joint {
		return b.one.Exec(ctx, c, keys, args).ToMessage()
	}
	replies, err := b.one.Exec(ctx, c, keys, args).ToArray()
	if err == nil && len(replies) != 1 {
		err = fmt.Errorf("%d replies to one call", len(replies))
	}
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	return replies[0], nil
}

// Many is the script that does it.
func (b *Batch) Many() *Script { return b.many }

// Exec runs the script once for each call, all of which have their number of keys
// and arguments, and returns the replies in order; an error reply among them is
// that call's alone. The error is of the whole, as of [Script.Exec].
func (b *Batch) Exec(ctx context.Context, c rueidis.CoreClient, calls []Call) ([]rueidis.RedisMessage, error) {
	keys := make([]string, 0, len(calls)*b.keys)
	args := make([]string, 0, len(calls)*b.args)
	for i, call := range calls {
		if len(call.Keys) != b.keys || len(call.Args) != b.args {
			panic(fmt.Sprintf("scripts: %s with %d keys and %d arguments", b.one.name, len(call.Keys), len(call.Args)))
		}
		if !b.joint || i == 0 {
			keys, args = append(keys, call.Keys...), append(args, call.Args...)
		} else {
			args = append(args, call.Args[b.head:]...)
		}
	}
	replies, err := b.many.Exec(ctx, c, keys, args).ToArray()
	if err == nil && len(replies) != len(calls) {
		err = fmt.Errorf("%d replies to %d calls", len(replies), len(calls))
	}
	return replies, err
}
