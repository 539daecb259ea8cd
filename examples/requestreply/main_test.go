package main

func Example() {
	main()
	// Output: order 4711: approved is true (correlation id charge-4711)
}
