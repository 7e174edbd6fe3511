defmodule Shop do
  @moduledoc "The shop's front door: `iex -S mix`, then `Shop.login({192, 0, 2, 1})` six times."

  @spec login(:inet.ip_address()) :: :welcome | {:come_back_in_ms, pos_integer() | :infinity}
  def login(ip) do
    case :weir.check(:login, ip) do
      {:allow, _remaining} -> :welcome
      {:deny, ms} -> {:come_back_in_ms, ms}
    end
  end
end
