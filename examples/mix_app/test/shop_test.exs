defmodule ShopTest do
  use ExUnit.Case
  import ExUnit.CaptureLog

  @visitor "alice@example.org"

  test "five logins are welcome, the next has to wait" do
    answers = for _ <- 1..6, do: Shop.login({192, 0, 2, 77})
    assert {[:welcome, :welcome, :welcome, :welcome, :welcome], [{:come_back_in_ms, ms}]} = Enum.split(answers, 5)
    assert ms > 0
  end

  test "an exception says what is wrong, and doesn't tell the key" do
    for {words, ask} <- mistakes() do
      message =
        try do
          ask.()
          flunk("no exception: #{words}")
        rescue
          e in ArgumentError -> Exception.message(e)
        end

      assert message =~ words
      refute message =~ @visitor
    end
  end

  test "the log of a crash says what is wrong, and doesn't tell the key" do
    for {words, ask} <- mistakes() do
      log = capture_log(fn -> crash(ask) end)
      assert log =~ words
      assert log =~ "weir.erl"
      refute log =~ "Failure while translating"
      refute log =~ @visitor
    end
  end

  defp mistakes do
    [
      {"there is no limiter called nope", fn -> :weir.check(:nope, @visitor) end},
      {"hits is an integer", fn -> :weir.decide(:login, @visitor, 0) end},
      {"item 1 (counted from 0)", fn -> :weir.check_many([{:login, @visitor, 1}, {:nope, @visitor, 1}]) end},
      {"rate is missing", fn -> :weir.put_limiter(:login, %{}) end}
    ]
  end

  defp crash(fun) do
    {:ok, pid} = Task.start(fn -> receive(do: (:go -> fun.())) end)
    ref = Process.monitor(pid)
    send(pid, :go)
    assert_receive {:DOWN, ^ref, :process, ^pid, {:badarg, _}}, 5000
  end
end
