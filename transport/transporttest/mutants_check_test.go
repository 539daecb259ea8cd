package transporttest

import "github.com/holdfast-go/holdfast/transport"

func (c *faultyConn) Check(op *transport.Operation) error {
	if c.f.check != nil {
		return c.f.check(c, op)
	}
	return c.sound.Check(op)
}

var checkMutants = []mutant{
	{"check-as-dispatch", "Check accepts all operations", func(f *faulty) {
		f.check = func(*faultyConn, *transport.Operation) error { return nil }
	}},
	{"check-as-dispatch", "Check refuses what Dispatch accepts", func(f *faulty) {
		f.check = func(c *faultyConn, op *transport.Operation) error {
			if op.Message.Headers.Get("Kit.Odd") != "" {
				return errMutant
			}
			return c.sound.Check(op)
		}
	}},
}
