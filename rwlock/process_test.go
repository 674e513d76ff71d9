package rwlock_test

func killedReader() {}
func killedWaiter() {}
func streamReader() {}
