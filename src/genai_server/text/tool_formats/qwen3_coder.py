"""Tool calls as Qwen3-Coder writes them, and after it Qwen 3.5 and Nemotron 3: a tag for each argument.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Now and then the model leaves out the first line. (Chat template and model card of Qwen3-Coder.)
"""

from genai_server.text.tool_formats.tagged import Tagged

QWEN3_CODER = Tagged(
    name="qwen3_coder",
    opening="<tool_call>",
    closing="</tool_call>",
    before_name="\n<function=",
    after_name=">",
    before_key="<parameter=",
    after_key=">",
    before_value="\n",
    after_value="\n</parameter>",
    end="</function>\n",
    may_be_bare=True,
)
