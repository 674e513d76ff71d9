package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/fence"
)

// A script that pays out of an account, unless its lock is no longer the newest.
// Token is what lease.Token() says.
func ExampleScript() {
	ctx := context.Background()
	pay := fence.NewScript(`
		local balance = tonumber(redis.call('GET', KEYS[1]) or 0)
		if balance < tonumber(ARGV[1]) then
			return redis.error_reply('BROKE balance ' .. balance)
		end
		return redis.call('DECRBY', KEYS[1], ARGV[1])`)

	account := "example:account"
	if err := client.Do(ctx, client.B().Set().Key(account).Value("100").Build()).Error(); err != nil {
		panic(err)
	}
	for _, call := range []struct {
		token  uint64
		amount string
	}{
		{token: 33, amount: "10"},
		{token: 33, amount: "10"}, // more of the same hold
		{token: 34, amount: "30"}, // the next holder
		{token: 33, amount: "50"}, // the first one, back from a long pause
	} {
		reply, err := pay.Exec(ctx, client, account, call.token, []string{account}, []string{call.amount})
		switch {
		case errors.Is(err, fence.ErrStaleToken):
			fmt.Println("the lock was lost:", err)
		case err != nil:
			fmt.Println(err)
		default:
			left, _ := reply.AsInt64()
			fmt.Println("left:", left)
		}
	}
	// Output:
	// left: 90
	// left: 80
	// left: 50
	// the lock was lost: fence: stale token: the lock was lost: token 33 is older than 34
}

// One string key needs no script.
func ExampleSet() {
	ctx := context.Background()
	fmt.Println(fence.Set(ctx, client, "example:leader", 34, "b"))
	fmt.Println(fence.Set(ctx, client, "example:leader", 33, "a"))
	leader, err := client.Do(ctx, client.B().Get().Key("example:leader").Build()).ToString()
	fmt.Println(leader, err)
	// Output:
	// <nil>
	// fence: stale token: the lock was lost: token 33 is older than 34
	// b <nil>
}
