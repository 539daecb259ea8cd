// Package resilience has policies of retries and time-outs, and runs functions by them. A [Policy]
// is declared once, as data, and has a name. A [Catalog] holds the policies of a program, and a
// [Runner] calls a function by the policy with a name:
//
//	receipt, err := resilience.Do(ctx, runner, "payment-gateway", func(ctx context.Context) (Receipt, error) {
//		return gateway.Charge(ctx, order)
//	})
//
// [Inline] and [Deferred] apply a policy to the messages of an endpoint, by a rule of package
// recoverability. The package itself needs no endpoint.
package resilience
