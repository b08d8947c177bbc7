"""Tool calls as GLM 4.5 to 4.7 write them: a tag for each name of an argument and one for its value.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

GLM 4.7 writes no line breaks. (Chat templates of GLM-4.5, GLM-4.6 and GLM-4.7.)
"""

from genai_server.text.tool_formats.tagged import Tagged

GLM = Tagged(
    name="glm",
    opening="<tool_call>",
    closing="",
    before_name="",
    after_name="",
    before_key="<arg_key>",
    after_key="</arg_key>",
    before_value="\n<arg_value>",
    after_value="</arg_value>",
    end="</tool_call>",
)
